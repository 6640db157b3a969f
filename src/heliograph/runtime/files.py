"""Atomic and durable file writes, and files that only their owner can read."""

import os
import secrets
from pathlib import Path


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file atomically and durably. `mode` is exact, whatever the umask."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=private_opener)`: if new, only its owner can read it."""
    return os.open(path, flags, 0o600)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(directory: Path) -> None:
    """Make a directory that only its owner may enter; keep the mode of one with other files."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not any(directory.iterdir()):
        directory.chmod(0o700)
