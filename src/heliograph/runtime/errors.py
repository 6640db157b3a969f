"""Errors that only the operator can fix. Each text explains how, and contains no secret.

Exception
└── OperatorError
    ├── ConfigError      the configuration is wrong; all its problems at once
    ├── IdentityError    keys or certificates are missing, damaged, or in the way
    └── StartError       a port, a directory or a store is not available
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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
    """Say of errors of the database what to do about them, as `StartError`."""
    try:
        yield
    except DatabaseLost as exc:
        raise StartError(f"the store cannot be reached: {exc}: see [store] url") from exc
    except DatabaseError as exc:
        raise StartError(f"the store cannot be opened: {exc}") from exc
