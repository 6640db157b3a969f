"""A whole system in one directory: each part in its own process, supervised by another.

This package knows the commands that start the parts, and nothing of what they do. A crash of one
part does not affect another.
"""
