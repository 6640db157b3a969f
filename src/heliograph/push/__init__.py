"""Push providers, one a file, behind the small interface of `provider`.

A provider delivers one push once and says what came of it. It keeps no queue, retries nothing and
stores nothing: what is owed, and when to try again, is for the caller to know.
"""
