"""The interface of push providers: deliveries go in, outcomes come out.

No outcome carries a device token or a key, so outcomes may be logged and counted. Their `code` is
the status of the HTTP answer, None if there was none; it does not affect equality.
"""

from dataclasses import dataclass, field
from typing import Protocol

from heliograph.wire.ntf.push import Push
from heliograph.wire.ntf.tokens import DeviceToken, InvalidReason


@dataclass(frozen=True, slots=True)
class Delivery:
    """One push for one device."""

    device: DeviceToken = field(repr=False)
    push: Push = field(repr=False)
    expires_at: int
    """Unix seconds after which the provider drops the push."""

    collapse_id: str | None = field(default=None, repr=False)
    """A push replaces an undelivered one with the same ID, for the same device."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider has taken over; `provider_id` is its name for the push."""

    provider_id: str | None = None
    code: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DeviceTokenInvalid:
    """The token will never work again."""

    reason: InvalidReason
    code: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RetryLater:
    """A temporary failure: send the push again later."""

    after: float | None
    """Seconds that the provider asked for."""

    reason: str
    connection: bool = False
    """There was no answer: `refresh`, and retry at once."""

    account_wide: bool = False
    """The provider limits our account: for a while, other pushes would get the same answer."""

    code: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Misconfigured:
    """The operator must act: a wrong key, topic or size. The same push would be refused again."""

    reason: str
    code: int | None = field(default=None, compare=False)


PushOutcome = Accepted | DeviceTokenInvalid | RetryLater | Misconfigured


class Provider(Protocol):
    """One push provider. Reasons are the provider's, or those of `heliograph.push.http`."""

    async def send(self, delivery: Delivery) -> PushOutcome:
        """Send a push once. Raises nothing but `asyncio.CancelledError`."""

    async def refresh(self) -> None:
        """Use new connections for the next `send`; requests in flight are not cancelled."""

    async def close(self) -> None:
        """Cancel requests in flight. May be called more than once."""
