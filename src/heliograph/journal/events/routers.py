"""Events that all routers record, and the journal's own loss of events."""

from heliograph.journal.columns import Part
from heliograph.journal.events.base import JournalEvent, event


@event(Part.SMP, Part.NTF)
class RouterStarted(JournalEvent):
    """A run begins. Notifications stored in earlier runs have an `ntf_seq` up to `through`."""

    through: int | None = None


@event(Part.SMP, Part.NTF)
class RouterRecovered(JournalEvent):
    """Everything pending in the store at the start of the run was journaled: `count` events with
    the reason `recovered`. A notification up to `through` that none of them covers, and no
    event settled, was settled by an event that was lost in a kill.
    """

    count: int
    through: int | None = None


@event(Part.SMP, Part.NTF)
class RouterStopped(JournalEvent):
    """A run ends with a clean shutdown; nothing of it is missing."""


@event(*Part)
class JournalLost(JournalEvent):
    """`count` events were lost since the last journaled event. Their `seq` are missing."""

    count: int
    reason: str


@event(Part.SMP, Part.NTF)
class ClientConnected(JournalEvent):
    """Number of client connections since the last such event."""

    count: int


@event(Part.SMP, Part.NTF)
class CommandsCounted(JournalEvent):
    """Number of commands of one name since the last such event."""

    command: str
    count: int


@event(Part.NTF)
class RegistrationsCounted(JournalEvent):
    """Number of registrations requested from one network within some seconds, if they are many."""

    source: bytes
    count: int
