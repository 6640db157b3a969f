"""Push providers, one a file, behind the small interface of `provider`.

A provider sends one push once and returns the outcome. Queues, retries and storage are the
caller's.
"""
