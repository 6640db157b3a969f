"""Limits on what clients may ask for: off by default, beyond them the answer is QUOTA."""

import time
from collections import deque
from dataclasses import dataclass, field

from heliograph.wire.requests import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit."""

    new_tokens_per_minute: int | None = None
    """From one address."""
    subscriptions_per_token: int | None = None
    commands_per_second: float | None = None
    """On one connection, over time: a burst of ten seconds' worth is allowed."""


@dataclass(slots=True)
class ClientState:
    """What the router knows of a connection."""

    session_private: bytes | None = field(repr=False)
    address: str = field(repr=False)
    busy: bool = False
    backlog: list[Request] = field(default_factory=list)
    allowance: float = 0.0
    allowed_at: float = 0.0


class RateLimits:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._registrations: dict[str, deque[float]] = {}
        self._forget_at = 0.0

    def may_command(self, client: ClientState) -> bool:
        rate = self._limits.commands_per_second
        if rate is None:
            return True
        now = time.monotonic()
        burst = max(rate * 10, 1.0)
        if not client.allowed_at:
            client.allowance = burst
        else:
            earned = (now - client.allowed_at) * rate
            client.allowance = min(client.allowance + earned, burst)
        client.allowed_at = now
        if client.allowance < 1:
            return False
        client.allowance -= 1
        return True

    def may_register(self, client: ClientState) -> bool:
        limit = self._limits.new_tokens_per_minute
        if limit is None:
            return True
        now = time.monotonic()
        if now >= self._forget_at:
            self._forget(now)
        recent = self._registrations.setdefault(client.address, deque())
        while recent and recent[0] < now - 60:
            recent.popleft()
        if len(recent) >= limit:
            return False
        recent.append(now)
        return True

    def _forget(self, now: float) -> None:
        """Addresses that have not registered for a minute; now and then, as it looks at all."""
        self._forget_at = now + 60
        for address, recent in list(self._registrations.items()):
            if not recent or recent[-1] < now - 60:
                del self._registrations[address]
