"""What an agent keeps of connections, their queues, and messages."""

from dataclasses import dataclass, field
from enum import Enum

from heliograph.wire.addresses import ServerAddress


class ConnectionStatus(Enum):
    ACTIVE = "active"
    DELETED = "deleted"
    """Gone for the user; kept until its queues are deleted at their routers."""


class RcvStatus(Enum):
    """A queue that we receive from."""

    NEW = "new"
    """Nobody is known to send to it yet."""
    SECURING = "securing"
    """The sender told us its key; the router was not told yet."""
    ACTIVE = "active"
    DELETING = "deleting"
    """To be deleted at the router."""
    GONE = "gone"
    """The router no longer has it."""


class SndStatus(Enum):
    """A queue that we send to."""

    NEW = "new"
    """Nothing was sent yet: it is secured, or the first message goes without authorization."""
    SECURED = "secured"
    """By us; the first message was not sent yet."""
    CONFIRMED = "confirmed"
    """The first message carried our key; we wait until the recipient says that it is set."""
    ACTIVE = "active"
    ENDED = "ended"
    """Another queue took its place."""
    REFUSED = "refused"
    """The router does not let us send to it: it was deleted, or someone else secured it."""


@dataclass(frozen=True, slots=True)
class Connection:
    conn_id: str
    status: ConnectionStatus
    enable_ntfs: bool
    created_at: int


@dataclass(frozen=True, slots=True)
class Notifier:
    """The recipient's side of notifier credentials: `auth_key` is the private one of NKEY."""

    notifier_id: bytes = field(repr=False)
    auth_key: bytes = field(repr=False)
    dh_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RcvQueue:
    """`queue_id` is local; keys are PKCS#8 and SubjectPublicKeyInfo, secrets 32 bytes.

    `dh_secret` is shared with the router, `e2e_secret` with the sender once its first message came.
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
    """The queue whose place it takes, while queues are rotated."""
    last_broker_ts: int | None = None
    """The newest time of a message received from it."""
    notifier: Notifier | None = None


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
    """Ours, which the first message carries."""
    e2e_secret: bytes = field(repr=False)
    sender_can_secure: bool = False


@dataclass(frozen=True, slots=True)
class Outgoing:
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
    """For people. `is_ready` says whether messages leave; `failed` are numbers and errors."""

    conn_id: str
    is_ready: bool
    enable_ntfs: bool
    routers: tuple[ServerAddress, ...]
    """Those that we receive from."""
    to_send: int
    unhandled: int
    failed: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A received message. `message_id` is its place among all; the other ID is the router's."""

    message_id: int
    conn_id: str
    broker_id: bytes = field(repr=False)
    broker_ts: int
    notification: bool
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NotificationInfo:
    """One notification of a push. `meta` cannot always be opened, so both of it may be None."""

    conn_id: str
    queue_id: int
    ntf_ts: int
    msg_id: bytes | None = field(repr=False)
    msg_ts: int | None
    nonce: bytes = field(repr=False)
