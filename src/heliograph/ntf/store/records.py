"""Records of the store: tokens, subscriptions, notifications and pending pushes."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from heliograph.wire.ntf.tokens import DeviceToken, NtfSubStatus, TokenStatus
from heliograph.wire.smp.ids import IDS_HASH_SIZE, ids_hash, xor

ID_SIZE = 24
CODE_SIZE = 32


@dataclass(frozen=True, slots=True)
class Token:
    token_id: bytes
    device: DeviceToken = field(repr=False)
    status: TokenStatus
    auth_key: bytes
    dh_private: bytes = field(repr=False)
    dh_secret: bytes = field(repr=False)
    code: bytes = field(repr=False)
    cron_minutes: int = 0
    seen_at: int = 0
    """When a command of its owner was recorded last, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Subscription:
    subscription_id: bytes
    token_id: bytes
    server_id: int
    notifier_id: bytes
    notifier_key: bytes = field(repr=False)
    status: NtfSubStatus
    associated: bool = False


class QueueKey(NamedTuple):
    """The IDs and key that NSUB needs."""

    subscription_id: bytes
    notifier_id: bytes
    notifier_key: bytes
    is_inactive: bool = False
    """Its status in the store when it was read."""


@dataclass(frozen=True, slots=True)
class AssociatedIds:
    """Notifier IDs associated with our service at a messaging router, as far as we know.

    `deleted` ones were deleted here, but not there; `surplus` is what the router has besides.
    """

    active: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    surplus_count: int = 0
    surplus_hash: bytes = bytes(IDS_HASH_SIZE)

    def digest(self) -> tuple[int, bytes]:
        """Return count and hash that the router is expected to report."""
        ids = {*self.active, *self.deleted}
        return len(ids) + self.surplus_count, xor(ids_hash(ids), self.surplus_hash)


class PushKind(Enum):
    VERIFICATION = "verification"
    MESSAGE = "message"
    CHECK = "check"


class Notice(NamedTuple):
    """The last notification of one subscription; `address` is the messaging router's."""

    seq: int
    address: str
    notifier_id: bytes
    timestamp: int
    nonce: bytes
    meta: bytes


@dataclass(frozen=True, slots=True)
class PendingPush:
    """A push that a provider has not accepted yet, with everything needed to build it.

    `seq` is the newest notification that it covers; `since` is when it became pending.
    """

    token_id: bytes
    kind: PushKind
    device: DeviceToken = field(repr=False)
    dh_secret: bytes = field(repr=False)
    code: bytes = field(repr=False)
    seq: int
    since: float
    attempts: int
    expires_at: float
    notices: tuple[Notice, ...] = ()

    @property
    def key(self) -> tuple[bytes, PushKind]:
        return self.token_id, self.kind


@dataclass(frozen=True, slots=True)
class QueueDigest:
    """A number of subscribed queues, and the hash of their IDs if there is one."""

    count: int
    ids_hash: bytes | None = None


class Incoming(NamedTuple):
    """An NMSG as received; `is_repeat` if it is known to have been received before.

    `stream` names the subscriber, which receives the notifications of a queue in their order, and
    `order` is the number of this one in it.
    """

    notifier_id: bytes
    nonce: bytes
    meta: bytes
    at: float
    is_repeat: bool = False
    stream: bytes = b""
    order: int = 0
