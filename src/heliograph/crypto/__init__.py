"""Keys, boxes, authorizations, block keys and certificates.

Knows `heliograph.wire` for the forms of keys and padding, and nothing else of Heliograph. No I/O
and no clock; only functions whose name says so generate something random.
"""
