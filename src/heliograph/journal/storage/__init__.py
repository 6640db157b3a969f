"""The journal on disk: active logs and sealed segments, written, recovered and read."""
