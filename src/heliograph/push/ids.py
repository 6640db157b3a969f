"""IDs that replace one another at a provider, made to fit its limits."""

import hashlib
import re

from heliograph.wire.primitives import b64encode

_SAFE = re.compile(r"[A-Za-z0-9_-]+")


def short_id(text: str, size: int) -> str:
    """Return the ID if it is at most ``size`` characters of base64url, else a digest of it."""
    if len(text) <= size and _SAFE.fullmatch(text):
        return text
    return b64encode(hashlib.sha256(text.encode()).digest())[: min(size, 43)]
