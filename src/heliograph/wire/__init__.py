"""Bytes <-> values of the SimpleX protocols.

Pure: no I/O, no clock, no randomness, and no knowledge of any other part of Heliograph.
Anything malformed raises `heliograph.wire.errors.WireError`, which has the error to answer.
"""
