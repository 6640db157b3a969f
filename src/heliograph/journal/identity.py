"""What makes a router's journal its own: a random ID, and the key of its hashes, on disk.

journal.id     the router's ID in its events: random, so that it tells nothing
journal.key    the key of the hashes: keep it with the router, or paths can no longer be joined
"""

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.runtime.errors import IdentityError
from heliograph.runtime.files import write_file

__all__ = ["FILES", "JournalIdentity", "journal_identity"]

ID = "journal.id"
KEY = "journal.key"
FILES = (ID, KEY)
_ID_SIZE = 8
_KEY_SIZE = 32


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    router: str
    key: bytes = field(repr=False)


def journal_identity(directory: Path) -> JournalIdentity:
    """Read it; what is missing is made."""
    return JournalIdentity(
        _hex(directory / ID, _ID_SIZE), bytes.fromhex(_hex(directory / KEY, _KEY_SIZE, 0o600))
    )


def _hex(file: Path, size: int, mode: int = 0o644) -> str:
    try:
        if not file.exists():
            write_file(file, f"{secrets.token_hex(size)}\n".encode(), mode)
        text = file.read_bytes().decode(errors="replace").strip()
    except OSError as exc:
        raise IdentityError(f"{file}: {exc.strerror}: the router must be able to use it") from exc
    if re.fullmatch(rf"[0-9a-f]{{{size * 2}}}", text) is None:
        raise IdentityError(
            f"{file}: must be {size * 2} hexadecimal digits: restore it from a backup, or remove it"
            " and let the journal begin anew, with IDs that join with none of before"
        )
    return text
