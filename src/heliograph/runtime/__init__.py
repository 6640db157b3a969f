"""What any router process needs: configuration, keys on disk, logs, HTTP, signals.

It knows no protocol, no table and no part: a part hands it what is to be run.
"""
