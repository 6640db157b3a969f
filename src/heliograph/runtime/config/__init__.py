"""Configuration files: reading, checking, and writing the one that `init` makes."""
