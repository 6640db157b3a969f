"""The identity of a journal: a random ID, and the key of its hashes, on disk.

journal.id     the router's ID in its events: random, so that it reveals nothing journal.key    the
key of the hashes: keep it with the router, or events of later runs cannot be joined
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.runtime.errors import IdentityError
from heliograph.runtime.files import write_file

__all__ = ["JournalIdentity", "journal_identity"]

ID = "journal.id"
KEY = "journal.key"
_ID_SIZE = 8
_KEY_SIZE = 32


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    router: str
    key: bytes = field(repr=False)


def journal_identity(directory: Path, epoch: int = 0) -> JournalIdentity:
    """Read the identity; create what is missing. Each epoch has a key of its own."""
    key = bytes.fromhex(_hex(directory / KEY, _KEY_SIZE, 0o600))
    if epoch:
        key = hashlib.blake2b(b"%d" % epoch, key=key, digest_size=_KEY_SIZE).digest()
    return JournalIdentity(_hex(directory / ID, _ID_SIZE), key)


def _hex(file: Path, size: int, mode: int = 0o644) -> str:
    try:
        if not file.exists():
            write_file(file, f"{secrets.token_hex(size)}\n".encode(), mode)
        text = file.read_bytes().decode(errors="replace").strip()
    except OSError as exc:
        raise IdentityError(f"{file}: {exc.strerror}: the router must be able to use it") from exc
    if re.fullmatch(rf"[0-9a-f]{{{size * 2}}}", text) is None:
        raise IdentityError(
            f"{file}: must be {size * 2} hexadecimal digits: restore it from a backup, or remove"
            " it: the journal then starts over, and its hashes do not match the earlier ones"
        )
    return text
