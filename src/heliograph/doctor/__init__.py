"""Find what is wrong with an installation, and what to do about it: `heliograph doctor`.

It changes nothing and reveals no key, password, device token or queue. Each check is a function
that yields findings; `examine` runs those that apply to a directory.
"""
