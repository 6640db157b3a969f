"""Events about an NMSG that the notification router received, one by one or in columns."""

from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.journal.columns import Part
from heliograph.journal.events.base import EventColumns, JournalEvent, columns, event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nmsg(JournalEvent):
    notification: bytes
    own_server: bool
    smp_host: str | None = None


@event(Part.NTF)
class NmsgReceived(_Nmsg):
    """Received from a messaging router. The result is one of the next four."""


@event(Part.NTF)
class NmsgStored(_Nmsg):
    """Durable, and a push to its token is pending. Also recorded if a newer one of the same
    subscription replaced it at once.
    """

    token: bytes
    subscription: bytes
    ntf_seq: int
    provider: str


@event(Part.NTF)
class NmsgRepeated(_Nmsg):
    """It, or a newer one of its subscription, was stored before: messaging routers resend
    unconfirmed notifications.
    """

    token: bytes
    subscription: bytes
    provider: str | None = None


@event(Part.NTF)
class NmsgUnknown(_Nmsg):
    """There is no such subscription; `subscription` is the hash of the received ID."""

    subscription: bytes | None = None


@event(Part.NTF)
class NmsgDropped(_Nmsg):
    """Discarded: a token with this status gets no pushes."""

    token: bytes
    subscription: bytes
    status: str
    provider: str | None = None


@columns(NmsgReceived)
class NmsgReceivedColumns(EventColumns):
    at: Sequence[float]
    notification: Sequence[bytes]
    own_server: bool
    smp_host: str | None


@columns(NmsgStored)
class NmsgStoredColumns(EventColumns):
    notification: Sequence[bytes]
    token: Sequence[bytes]
    subscription: Sequence[bytes]
    ntf_seq: Sequence[int]
    provider: Sequence[str]
    own_server: bool
    smp_host: str | None


@columns(NmsgRepeated)
class NmsgRepeatedColumns(EventColumns):
    notification: Sequence[bytes]
    token: Sequence[bytes]
    subscription: Sequence[bytes]
    provider: Sequence[str | None]
    own_server: bool
    smp_host: str | None


@columns(NmsgUnknown)
class NmsgUnknownColumns(EventColumns):
    notification: Sequence[bytes]
    subscription: Sequence[bytes | None]
    own_server: bool
    smp_host: str | None


@columns(NmsgDropped)
class NmsgDroppedColumns(EventColumns):
    notification: Sequence[bytes]
    token: Sequence[bytes]
    subscription: Sequence[bytes]
    status: Sequence[str]
    provider: Sequence[str | None]
    own_server: bool
    smp_host: str | None
