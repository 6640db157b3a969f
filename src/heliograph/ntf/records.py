"""What the router keeps of a token, a subscription, a messaging router, and what it owes."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from heliograph.wire.tokens import DeviceToken, SubscriptionStatus, TokenStatus

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


@dataclass(frozen=True, slots=True)
class Subscription:
    subscription_id: bytes
    token_id: bytes
    server_id: int
    notifier_id: bytes
    notifier_key: bytes = field(repr=False)
    status: SubscriptionStatus
    associated: bool = False


class QueueKey(NamedTuple):
    """What an NSUB needs."""

    subscription_id: bytes
    notifier_id: bytes
    notifier_key: bytes
    is_inactive: bool = False
    """In the store, when it was read."""


class DebtKind(Enum):
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
class Owed:
    """A push that a token is owed, with all that is needed to make it.

    `seq` is the newest notification that it covers; `since` when it began to be owed.
    """

    token_id: bytes
    kind: DebtKind
    device: DeviceToken = field(repr=False)
    dh_secret: bytes = field(repr=False)
    code: bytes = field(repr=False)
    seq: int
    since: float
    attempts: int
    expires_at: float
    notices: tuple[Notice, ...] = ()

    @property
    def key(self) -> tuple[bytes, DebtKind]:
        return self.token_id, self.kind


class Incoming(NamedTuple):
    """An NMSG as it arrived."""

    notifier_id: bytes
    nonce: bytes
    meta: bytes
    at: float
