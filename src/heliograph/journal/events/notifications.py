"""Events about a notification at the messaging router and at the client."""

from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.journal.columns import Part
from heliograph.journal.events.base import EventColumns, JournalEvent, columns, event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notification(JournalEvent):
    notification: bytes


@event(Part.SMP)
class NotificationStored(_Notification):
    """A message that its sender marked for notification arrived; the notification is durable. With
    the reason `recovered`: it was still waiting when the run began.
    """

    reason: str | None = None


@event(Part.SMP)
class NotificationDelivered(_Notification):
    """Sent to the subscriber. It may be sent again after a connection broke."""


@event(Part.SMP)
class NotificationExpired(_Notification):
    """It was not delivered, or its delivery not confirmed, in time."""


@event(Part.SMP)
class NotificationRemoved(_Notification):
    """Its notifier or queue was deleted while it was waiting or unconfirmed."""


@event(Part.AGENT)
class AgentDecrypted(_Notification):
    """A push was decrypted."""


@event(Part.DEVICE)
class DeviceShown(_Notification):
    """The user was shown something."""


@columns(NotificationStored)
class NotificationStoredColumns(EventColumns):
    notification: Sequence[bytes]


@columns(NotificationDelivered)
class NotificationDeliveredColumns(EventColumns):
    notification: Sequence[bytes]
