"""What the agent keeps about notifications: its token, tokens to delete, subscriptions.

Names are those of the protocol: a subscription's action is what is to be done next with it, and it
is stored before it is done.
"""

from dataclasses import dataclass, field
from enum import Enum

from heliograph.crypto.keys import KeyPair
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.tokens import DeviceToken, SubscriptionState, TokenStatus


class NotificationsMode(Enum):
    """How a device learns of messages."""

    INSTANT = "instant"
    PERIODIC = "periodic"
    OFF = "off"


class TokenAction(Enum):
    """What is to be done next with a token; None when it waits for its verification push."""

    REGISTER = "R"
    VERIFY = "V"
    CHECK = "C"


@dataclass(frozen=True, slots=True)
class NtfToken:
    """The registration of this device at a notification router.

    `code` is that of a pending VERIFY; `cron_minutes` is what the router confirmed.
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

    @property
    def is_instant(self) -> bool:
        """Whether subscriptions are to be made and kept."""
        return self.status is TokenStatus.ACTIVE and self.mode is NotificationsMode.INSTANT


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """What an app may show of a token."""

    device: DeviceToken = field(repr=False)
    status: TokenStatus
    mode: NotificationsMode
    ntf_address: ServerAddress
    token_id: bytes | None = field(default=None, repr=False)
    """What the router calls it, once it is registered there."""


@dataclass(frozen=True, slots=True)
class TokenToDelete:
    """Forgotten here already, and still to be deleted at its router."""

    token_id: bytes = field(repr=False)
    ntf_address: ServerAddress
    key: bytes = field(repr=False)
    attempts: int = 0


class Stage(Enum):
    """How far a subscription has come."""

    NEW = "NEW"
    KEY = "KEY"
    CREATED = "CREATED"
    DELETED = "DELETED"


class SubAction(Enum):
    """What is to be done next with a subscription, and where."""

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

    `action` None is parked: it failed for good, and the next create begins it again. `due` is in
    seconds of the clock, 0 for at once. `revision` tells a worker whether the supervisor changed it
    meanwhile.
    """

    conn_id: str
    smp_address: ServerAddress
    ntf_address: ServerAddress
    notifier_id: bytes | None = field(default=None, repr=False)
    token_id: bytes | None = field(default=None, repr=False)
    subscription_id: bytes | None = field(default=None, repr=False)
    stage: Stage = Stage.NEW
    state: SubscriptionState | None = None
    action: SubAction | None = SubAction.SMP_KEY
    due: float = 0.0
    attempts: int = 0
    revision: int = 0


class CommandKind(Enum):
    """What the supervisor is asked to do for connections."""

    CREATE = "create"
    DELETE = "delete"
    """Notifications are off for it, but the connection stays."""
    FORGET = "forget"
    """The connection and its queue are being deleted."""


@dataclass(frozen=True, slots=True)
class Command:
    kind: CommandKind
    conn_ids: tuple[str, ...]
