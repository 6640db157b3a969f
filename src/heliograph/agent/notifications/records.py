"""Records of notifications: the token, tokens to delete, subscriptions.

Names are those of the protocol. The action of a subscription is its next step, and is stored before
it is performed.
"""

from dataclasses import dataclass, field
from enum import Enum

from heliograph.crypto.keys import KeyPair
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.ntf.tokens import (
    DeviceToken,
    NotificationsMode,
    SubscriptionState,
    TokenStatus,
)


class TokenAction(Enum):
    """The next step of a token; None while it waits for its verification push."""

    REGISTER = "R"
    VERIFY = "V"
    CHECK = "C"


@dataclass(frozen=True, slots=True)
class NtfToken:
    """The registration of this device at a notification router.

    `code` is that of a pending VERIFY; `cron_minutes` is what the router confirmed.

    It has one field per column of its table.
    """

    device: DeviceToken = field(repr=False)
    ntf_address: ServerAddress
    auth_keys: KeyPair = field(repr=False)
    dh_keys: KeyPair = field(repr=False)
    mode: NotificationsMode
    token_id: bytes | None = field(default=None, repr=False)
    dh_secret: bytes | None = field(default=None, repr=False)
    status: TokenStatus = TokenStatus.NEW
    action: TokenAction | None = TokenAction.REGISTER
    code: bytes | None = field(default=None, repr=False)
    cron_minutes: int = 0
    created_at: float = field(default=0.0, compare=False)
    checked_at: float = field(default=0.0, compare=False)
    """When the router last reported the status."""

    @property
    def is_instant(self) -> bool:
        """Return whether subscriptions are to be created and kept."""
        return self.status is TokenStatus.ACTIVE and self.mode is NotificationsMode.INSTANT


@dataclass(frozen=True, slots=True)
class TokenToDelete:
    """A token that is removed here, and still to be deleted at its router."""

    token_id: bytes = field(repr=False)
    ntf_address: ServerAddress
    key: bytes = field(repr=False)
    attempts: int = 0


class SubscriptionStage(Enum):
    """The progress of a subscription."""

    NEW = "NEW"
    KEY = "KEY"
    CREATED = "CREATED"
    DELETED = "DELETED"


class SubAction(Enum):
    """The next step of a subscription, and the kind of router that performs it."""

    SMP_KEY = "SMP_KEY"
    SMP_DELETE = "SMP_DELETE"
    NTF_CREATE = "NTF_CREATE"
    NTF_CHECK = "NTF_CHECK"
    NTF_DELETE = "NTF_DELETE"

    @property
    def at_smp(self) -> bool:
        return self in (SubAction.SMP_KEY, SubAction.SMP_DELETE)

    @property
    def is_delete(self) -> bool:
        return self in (SubAction.SMP_DELETE, SubAction.NTF_DELETE)


@dataclass(frozen=True, slots=True)
class NtfSubscription:
    """The subscription of a connection's receive queue.

    With `action` None it is parked: it failed for good, and the next create begins it again. `due`
    is in seconds of the clock, 0 for at once. Workers compare `revision` to detect a change by the
    supervisor.
    """

    conn_id: str
    smp_address: ServerAddress
    ntf_address: ServerAddress
    notifier_id: bytes | None = field(default=None, repr=False)
    token_id: bytes | None = field(default=None, repr=False)
    subscription_id: bytes | None = field(default=None, repr=False)
    stage: SubscriptionStage = SubscriptionStage.NEW
    state: SubscriptionState | None = None
    action: SubAction | None = SubAction.SMP_KEY
    due: float = 0.0
    attempts: int = 0
    revision: int = 0


class CommandKind(Enum):
    """What the supervisor does for connections."""

    CREATE = "create"
    DELETE = "delete"
    """Notifications are off for it, but the connection stays."""
    FORGET = "forget"
    """The connection and its queue are being deleted."""


@dataclass(frozen=True, slots=True)
class SupervisorCommand:
    kind: CommandKind
    conn_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CronIntervals:
    """Minutes between wake-ups by the router; 0 for never.

    In instant mode wake-ups are a safety net for lost notifications.
    """

    instant: int = 20
    periodic: int = 20

    def minutes(self, mode: NotificationsMode) -> int:
        return self.periodic if mode is NotificationsMode.PERIODIC else self.instant
