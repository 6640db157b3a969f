"""Events about actions that the pipeline decided on."""

from dataclasses import dataclass

from heliograph.journal.columns import Part
from heliograph.journal.events.base import JournalEvent, event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject(JournalEvent):
    action: str
    action_kind: str
    token: bytes | None = None
    subscription: bytes | None = None
    server: bytes | None = None


@event(Part.NTF)
class ActionApplied(_Subject):
    """The router did what the pipeline had decided on."""


@event(Part.NTF)
class ActionUndone(_Subject):
    """The operator undid an action."""


@event(Part.NTF)
class ActionExpired(_Subject):
    """A throttle, pause or alert has ended by itself."""


@event(Part.NTF)
class WakeProgressed(JournalEvent):
    """How far a wake of many tokens is: of `expected_count` tokens, pushes to `count` are pending
    or sent. Recorded when its state changes, and once a minute.
    """

    wake: str
    status: str
    count: int
    expected_count: int


@event(Part.NTF)
class ActionRefused(JournalEvent):
    """The router did not do what the pipeline had decided on."""

    action: str
    action_kind: str
    reason: str
