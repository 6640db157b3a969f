"""Events about the messaging routers to which a notification router subscribes."""

from dataclasses import dataclass

from heliograph.journal.columns import Part
from heliograph.journal.events.base import JournalEvent, event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server(JournalEvent):
    server: bytes
    own_server: bool
    smp_host: str | None = None


@event(Part.NTF)
class SmpUp(_Server):
    """Connected to a messaging router."""


@event(Part.NTF)
class SmpDown(_Server):
    """Disconnected from a messaging router."""


@event(Part.NTF)
class SmpSubscribed(_Server):
    """All queues were subscribed after connecting. With the reason `service`, it was by
    service subscription, with hashes; otherwise there is only the count.
    """

    count: int
    expected_count: int
    hash: bytes | None = None
    expected_hash: bytes | None = None
    reason: str | None = None


@event(Part.NTF)
class SmpDrift(_Server):
    """The messaging router's count or hash of our subscriptions differs from ours: the
    difference is repaired.
    """

    count: int | None = None
    hash: bytes | None = None
    expected_count: int | None = None
    expected_hash: bytes | None = None


@event(Part.NTF)
class SmpCounted(_Server):
    """Number of NMSG from a messaging router within some seconds, and how long its answers took.
    A router that becomes silent is recorded with 0 for a while.
    """

    count: int
    delay: int | None = None
