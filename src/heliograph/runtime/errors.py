"""What only the operator can put right. Each text says how, and holds no secret.

Exception
└── OperatorError
    ├── ConfigError      the configuration is wrong; all its problems at once
    ├── IdentityError    keys or certificates are missing, damaged, or in the way
    └── StartError       a port, a directory or a store cannot be had
"""

from collections.abc import Iterable


class OperatorError(Exception):
    """Something only the operator can put right."""


class ConfigError(OperatorError):
    """The configuration is wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class IdentityError(OperatorError):
    """Keys or certificates are missing, damaged, or in the way."""


class StartError(OperatorError):
    """A port, a directory or a store cannot be had."""
