"""What an agent tells its application, besides messages."""

from dataclasses import dataclass

from heliograph.agent.ntf_records import TokenInfo
from heliograph.wire.addresses import ServerAddress


@dataclass(frozen=True, slots=True)
class ConnectionReady:
    """Messages to the other side leave from now on."""

    conn_id: str


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A router accepted it. `number` is what `send` gave."""

    conn_id: str
    number: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """It will never be sent: mostly `AUTH`, when the other side has deleted the connection."""

    conn_id: str
    number: int
    error: str


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """Another process or device subscribed to the queue. `subscribe` takes it back."""

    conn_id: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueGone:
    """The router no longer has the queue."""

    conn_id: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class RouterConnected:
    address: ServerAddress


@dataclass(frozen=True, slots=True)
class RouterDisconnected:
    address: ServerAddress


@dataclass(frozen=True, slots=True)
class TokenChanged:
    """Another status, mode or device; None when there is no token any more."""

    token: TokenInfo | None


AgentEvent = (
    ConnectionReady
    | MessageSent
    | SendFailed
    | SubscriptionEnded
    | QueueGone
    | RouterConnected
    | RouterDisconnected
    | TokenChanged
)
