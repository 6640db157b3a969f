"""Services for every router process: configuration, keys on disk, logs, HTTP, signals.

Independent of protocols, tables and parts: a part passes in what is to be run.
"""
