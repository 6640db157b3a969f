"""Errors of an agent. Each text says what to do, and contains no secret.

Exception
└── AgentError
    ├── StoreInUse             another process has locked the store for too long
    ├── PassphraseError        the store cannot be opened
    │   ├── PassphraseNeeded   it is encrypted, and no passphrase was given
    │   ├── WrongPassphrase    it is encrypted with another one
    │   └── NotEncrypted       a passphrase was given, and it was made without
    ├── UnknownConnection      no connection has this ID, or it was deleted
    ├── UnknownMessage         no message of the connection has this ID
    ├── MessageTooLong         the body does not fit in a message
    ├── BadInvitation          a text that is no invitation
    ├── LinkUsed               a short link that leads nowhere any more
    ├── BadNotification        a push that cannot be opened, or names no queue of ours
    ├── Prohibited             an operation that makes no sense in this state
    └── RouterError            the router refused, or cannot be reached
"""


class AgentError(Exception):
    """An operation of an agent failed."""


class StoreInUse(AgentError):
    """Another process has locked the store for too long."""


class PassphraseError(AgentError):
    """The store cannot be opened."""


class PassphraseNeeded(PassphraseError):
    """The store is encrypted, and no passphrase was given."""


class WrongPassphrase(PassphraseError):
    """The store is encrypted with another passphrase."""


class NotEncrypted(PassphraseError):
    """A passphrase was given, and the store was made without."""


class UnknownConnection(AgentError):
    """No connection has this ID, or it was deleted."""


class UnknownMessage(AgentError):
    """No message of the connection has this ID."""


class MessageTooLong(AgentError):
    """The body does not fit in a message."""


class BadInvitation(AgentError):
    """The text is not an invitation."""


class LinkUsed(AgentError):
    """A short link that was used already, or deleted."""


class BadNotification(AgentError):
    """A push cannot be decrypted, or names no queue of ours."""


class Prohibited(AgentError):
    """The operation is not possible in this state."""


class RouterError(AgentError):
    """The router refused, or cannot be reached. `temporary` says whether a retry may help."""

    def __init__(self, reason: str, *, temporary: bool) -> None:
        super().__init__(reason)
        self.temporary = temporary
