"""Events about pushes: pending, attempted, and their outcome."""

from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.journal.columns import Part
from heliograph.journal.events.base import EventColumns, JournalEvent, columns, event


@dataclass(frozen=True, slots=True, kw_only=True)
class _PushEvent(JournalEvent):
    token: bytes
    provider: str
    mode: str
    push: bytes
    attempt: int


@event(Part.NTF)
class PushPending(JournalEvent):
    """A push to a token is pending. With the reason `recovered`: it was pending when the run
    began, and will settle its notifications up to `through`.
    """

    token: bytes
    provider: str
    mode: str
    push: bytes | None = None
    through: int | None = None
    notifications: Sequence[bytes] | None = None
    attempt: int | None = None
    reason: str | None = None


@event(Part.NTF)
class PushAttempted(_PushEvent):
    """Sent to the provider."""


@event(Part.NTF)
class PushAccepted(_PushEvent):
    """Accepted by the provider. Settles all notifications of the token up to `through`: those
    listed were carried, the others coalesced. It may carry some that an earlier push carried too.
    With the reason `empty`, no notification was left to carry.
    """

    through: int | None = None
    notifications: Sequence[bytes] | None = None
    reason: str | None = None
    code: int | None = None


@event(Part.NTF)
class PushRejected(_PushEvent):
    """The provider reports the token as invalid. Only `token_invalid` settles notifications: the
    device token may have been replaced meanwhile.
    """

    reason: str
    code: int | None = None


@event(Part.NTF)
class PushRetried(_PushEvent):
    """Not accepted, and retried after a delay. The status is `refused` if our request was at
    fault, else `later`.
    """

    reason: str
    status: str
    code: int | None = None


@event(Part.NTF)
class PushExpired(_PushEvent):
    """No longer retried. Settles all notifications of the token up to `through`; a later push
    may still carry them.
    """

    reason: str
    through: int | None = None


@event(Part.NTF)
class PushesTimed(JournalEvent):
    """Number of answers of a provider within some seconds, and how long they took."""

    provider: str
    count: int
    delay: int


@columns(PushPending)
class PushPendingColumns(EventColumns):
    token: Sequence[bytes]
    provider: Sequence[str]
    mode: Sequence[str]
    push: Sequence[bytes]
    attempt: Sequence[int]
    through: Sequence[int | None]


@columns(PushAccepted)
class PushAcceptedColumns(EventColumns):
    token: Sequence[bytes]
    provider: Sequence[str]
    mode: Sequence[str]
    push: Sequence[bytes]
    attempt: Sequence[int]
    through: Sequence[int | None]
    notifications: Sequence[Sequence[bytes] | None]
    reason: Sequence[str | None]
    code: Sequence[int | None]
