"""Responses and events about subscriptions to queues, to their notifications, and to services."""

from dataclasses import dataclass

from heliograph.wire.primitives import i64, maybe, short
from heliograph.wire.table import OK, Credentials, Field, Message
from heliograph.wire.versions import SMP_DELETED_EVENT, SMP_SERVICE_CERTS, SMP_SERVICE_HASH

NO_COUNT = -1  # the count in versions that carry none
NO_HASH = bytes(16)


@dataclass(frozen=True, slots=True)
class SOK:
    """Subscribed; with the service the queue is now associated with."""

    service_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class SOKS:
    """Subscribed to this many queues of a service."""

    count: int
    ids_hash: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class END:
    """Another connection took over the subscription."""


@dataclass(frozen=True, slots=True)
class ENDS:
    """Another connection took over the subscription of a service."""

    count: int
    ids_hash: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class DELD:
    """The queue was deleted."""


def _sok_as_ok(message: SOK, version: int) -> SOK | OK:
    return message if version >= SMP_SERVICE_CERTS else OK()


def _deld_as_end(message: DELD, version: int) -> DELD | END:
    return message if version >= SMP_DELETED_EVENT else END()


COUNT_AND_HASH = (
    Field("count", i64, since=SMP_SERVICE_HASH),
    Field("ids_hash", short, since=SMP_SERVICE_HASH),
)
_COUNT_THEN_HASH = (Field("count", i64), Field("ids_hash", short, since=SMP_SERVICE_HASH))

SUBSCRIPTION_RESPONSES = (
    Message(SOK, Credentials.REPLY, (Field("service_id", maybe(short)),), downgrade=_sok_as_ok),
    Message(SOKS, Credentials.REPLY, _COUNT_THEN_HASH),
    Message(END, Credentials.REPLY),
    Message(ENDS, Credentials.REPLY, _COUNT_THEN_HASH),
    Message(DELD, Credentials.REPLY, downgrade=_deld_as_end),
)
