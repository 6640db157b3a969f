"""What the rest of the system knows of push providers: deliveries go in, outcomes come out.

No outcome carries a device token or a key, so outcomes may be logged and counted. Their `code` is
the status of the HTTP answer, None if there was none; it makes no outcome another.
"""

from dataclasses import dataclass, field
from typing import Protocol

from heliograph.wire.push import Push
from heliograph.wire.tokens import DeviceToken, InvalidReason


@dataclass(frozen=True, slots=True)
class Delivery:
    """One push for one device."""

    device: DeviceToken = field(repr=False)
    push: Push = field(repr=False)
    expires_at: int
    """Unix seconds: a provider that could not reach the device by then gives up."""

    collapse_id: str | None = field(default=None, repr=False)
    """A push replaces an undelivered one with the same ID, for the same device."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider has taken over; `provider_id` is its name for the push."""

    provider_id: str | None = None
    code: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TokenInvalid:
    """The token will never work again."""

    reason: InvalidReason
    code: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Nobody's fault, or the provider's."""

    after: float | None
    """Seconds that the provider asked for."""

    reason: str
    connection: bool = False
    """No answer was had: `refresh`, and try again at once."""

    code: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The operator's fault: a wrong key, topic or size. The same push would be refused again."""

    reason: str
    code: int | None = field(default=None, compare=False)


Outcome = Accepted | TokenInvalid | RetryLater | Refused


class Provider(Protocol):
    """One push provider. `reason`s are its own words, or the few of `heliograph.push.http`."""

    async def send(self, delivery: Delivery) -> Outcome:
        """Deliver once. Raises nothing but `asyncio.CancelledError`."""

    async def refresh(self) -> None:
        """Have the next `send` use a new connection; what is under way goes on."""

    async def close(self) -> None:
        """Give up what is under way. May be called more than once."""
