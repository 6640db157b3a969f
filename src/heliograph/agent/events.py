"""Events that an agent reports to its application, besides messages."""

from dataclasses import dataclass

from heliograph.agent.records import TokenInfo
from heliograph.wire.addresses import ServerAddress


@dataclass(frozen=True, slots=True)
class ConnectionReady:
    """Messages to the other side can be sent from now on."""

    conn_id: str


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A router accepted the message. `number` is what `send` returned."""

    conn_id: str
    number: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The message can never be sent: usually `AUTH`, the other side deleted the connection."""

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
    """The token has another status, mode or device; None if it was deleted."""

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
