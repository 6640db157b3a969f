"""Errors of a phone. Each text says what to do.

Exception
└── PhoneError       a phone cannot do what it was asked for
    └── SendRefused  a router will never accept a message for this contact
"""

from heliograph.wire.errors import ErrorCode


class PhoneError(Exception):
    """A phone cannot perform the operation."""


class SendRefused(PhoneError):
    """A router will never accept a message for this contact."""

    def __init__(self, error: str) -> None:
        why = f"the router answered {error}"
        if error == ErrorCode.AUTH.value:
            why = (
                "this link was used already, or the contact deleted the chat; ask for a new link,"
                " and join it with `heliograph device connect`"
            )
        super().__init__(f"refused: {why}")
