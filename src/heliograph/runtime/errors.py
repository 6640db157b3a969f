"""Errors that only the operator can fix. Each text explains how, and contains no secret.

Exception
└── OperatorError
    ├── ConfigError      the configuration is wrong; all its problems at once
    ├── IdentityError    keys or certificates are missing, damaged, or in the way
    └── StartError       a port, a directory or a store is not available
"""

import errno
import os
import pwd
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from heliograph.db.errors import DatabaseError, DatabaseLost


class OperatorError(Exception):
    """A problem that only the operator can fix."""


class ConfigError(OperatorError):
    """The configuration is wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class IdentityError(OperatorError):
    """Keys or certificates are missing, damaged, or in the way."""


class StartError(OperatorError):
    """A port, a directory or a store is not available."""


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise errors of the database as `StartError`, with what to do about them."""
    try:
        yield
    except DatabaseLost as exc:
        raise StartError(f"the store cannot be reached: {exc}: see [store] url") from exc
    except DatabaseError as exc:
        raise StartError(f"the store cannot be opened: {exc}") from exc


def file_error(
    exc: OSError, path: Path | str | None = None, verb: str = "", advice: str = ""
) -> str:
    """Return `PATH: what cannot be done: why: what to do` of an error of the file system.

    `advice` is what to do unless access is denied.
    """
    place = str(path or exc.filename or "")
    words = [place, verb, exc.strerror or type(exc).__name__, access_advice(exc, place) or advice]
    return ": ".join(word for word in words if word)


def access_advice(exc: OSError, path: Path | str) -> str:
    """Return what to do if access is denied: as which user to run this. Otherwise ""."""
    if exc.errno not in (errno.EACCES, errno.EPERM):
        return ""
    path = Path(path)
    for place in (path, *path.parents):
        try:
            owner = place.stat().st_uid
        except OSError:
            continue
        if owner == os.geteuid() != 0:
            return f"run chmod u+rwX {place}"
        users = "root" if owner == 0 else f"{_user_name(owner)}, or as root"
        is_missing = place != path and os.access(place, os.X_OK)
        return f"run this as {users}{', or choose another place' if is_missing else ''}"
    return "run this as another user"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
