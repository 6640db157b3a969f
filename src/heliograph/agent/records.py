"""Records of connections, their queues, and messages."""

from dataclasses import dataclass, field
from enum import Enum

from heliograph.wire.addresses import ServerAddress
from heliograph.wire.ntf.tokens import DeviceToken, NotificationsMode, TokenStatus


class ConnectionStatus(Enum):
    ACTIVE = "active"
    DELETED = "deleted"
    """Deleted by the user; kept until its queues are deleted at their routers."""


class RcvStatus(Enum):
    """The status of a queue that we receive from."""

    NEW = "new"
    """No sender is known yet."""
    SECURING = "securing"
    """The sender sent its key, which is not set at the router yet (KEY)."""
    ACTIVE = "active"
    DELETING = "deleting"
    """To be deleted at the router."""
    GONE = "gone"
    """The router no longer has it."""


class SndStatus(Enum):
    """The status of a queue that we send to."""

    NEW = "new"
    """Nothing was sent yet: secure it, or send the first message without authorization."""
    SECURED = "secured"
    """Secured by us; the first message was not sent yet."""
    CONFIRMED = "confirmed"
    """The first message carried our key; the recipient has yet to confirm that it is set."""
    ACTIVE = "active"
    ENDED = "ended"
    """Replaced by another queue."""
    REFUSED = "refused"
    """The router refuses our messages: the queue was deleted, or someone else secured it."""


@dataclass(frozen=True, slots=True)
class Connection:
    conn_id: str
    status: ConnectionStatus
    enable_ntfs: bool
    created_at: int


@dataclass(frozen=True, slots=True)
class NotifierCredentials:
    """The recipient's side of notifier credentials: `auth_key` is the private one of NKEY."""

    notifier_id: bytes = field(repr=False)
    auth_key: bytes = field(repr=False)
    dh_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RcvQueue:
    """A queue that we receive from.

    `queue_id` is local; keys are PKCS#8 and SubjectPublicKeyInfo, secrets 32 bytes. `dh_secret` is
    shared with the router, `e2e_secret` with the sender once its first message came.

    It has one field per column of its table.
    """

    queue_id: int
    conn_id: str
    address: ServerAddress
    rcv_id: bytes = field(repr=False)
    snd_id: bytes = field(repr=False)
    status: RcvStatus
    recipient_key: bytes = field(repr=False)
    dh_secret: bytes = field(repr=False)
    e2e_key: bytes = field(repr=False)
    e2e_secret: bytes | None = field(default=None, repr=False)
    sender_key: bytes | None = field(default=None, repr=False)
    sender_can_secure: bool = False
    replaces: int | None = None
    """The queue that this one replaces, during a rotation."""
    last_broker_ts: int | None = None
    """The newest time of a message received from it."""
    notifier: NotifierCredentials | None = None


@dataclass(frozen=True, slots=True)
class SndQueue:
    queue_id: int
    conn_id: str
    address: ServerAddress
    snd_id: bytes = field(repr=False)
    status: SndStatus
    is_current: bool
    sender_key: bytes = field(repr=False)
    e2e_public: bytes = field(repr=False)
    """Our public key, which the first message carries."""
    e2e_secret: bytes = field(repr=False)
    sender_can_secure: bool = False


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message that a router has not accepted yet. `queue_id` binds it to one queue."""

    seq: int
    conn_id: str
    queue_id: int | None
    number: int
    kind: bytes
    notification: bool
    body: bytes = field(repr=False)
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """A summary for status displays. `failed` are numbers and errors of messages never sent."""

    conn_id: str
    is_ready: bool
    enable_ntfs: bool
    routers: tuple[ServerAddress, ...]
    """Routers of the queues that we receive from."""
    to_send: int
    unhandled: int
    failed: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A received message. `message_id` is local and increases; `broker_id` is the router's."""

    message_id: int
    conn_id: str
    broker_id: bytes = field(repr=False)
    broker_ts: int
    notification: bool
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NotificationInfo:
    """One notification of a push; without time and ID if they cannot be decrypted."""

    conn_id: str
    queue_id: int
    ntf_ts: int
    msg_id: bytes | None = field(repr=False)
    msg_ts: int | None
    nonce: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """The public state of a token, for apps to show."""

    device: DeviceToken = field(repr=False)
    status: TokenStatus
    mode: NotificationsMode
    ntf_address: ServerAddress
    token_id: bytes | None = field(default=None, repr=False)
    """The ID at the router, once it is registered there."""
