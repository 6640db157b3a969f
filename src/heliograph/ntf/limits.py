"""Limits on what clients may request; beyond them the answer is QUOTA."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from heliograph.runtime.limits import Allowance, RateLimit
from heliograph.wire.ntf import NtfCommand
from heliograph.wire.requests import Request


@dataclass(frozen=True, slots=True)
class NtfLimits:
    """None is no limit."""

    new_tokens_per_minute: RateLimit | None = None
    """From one address."""
    subscriptions_per_token: int | None = None
    commands_per_second: RateLimit | None = None
    """On one connection."""


class LimitName(Enum):
    """The limit that a command exceeded."""

    COMMANDS = "commands"
    NEW_TOKENS = "new_tokens"
    PAUSED = "paused"
    """Of new tokens, while registrations from their network, or all, are paused."""
    SUBSCRIPTIONS = "subscriptions"


class QueuedCommand(NamedTuple):
    """A command that waits for execution; `is_denied` if its authorization was found wrong."""

    request: Request[NtfCommand]
    is_denied: bool = False


@dataclass(slots=True)
class ClientState:
    """The state of a client's connection; `allowance` None is without a limit on commands."""

    session_private: bytes | None = field(repr=False)
    address: str = field(repr=False)
    allowance: Allowance | None = None
    excess: int = 0
    """Commands beyond the allowance, for which the connection was not throttled yet."""
    busy: bool = False
    backlog: list[QueuedCommand] = field(default_factory=list)

    def may_command(self, now: float) -> bool:
        is_allowed = self.allowance is None or self.allowance.take(now)
        self.excess += not is_allowed
        return is_allowed

    def take_excess(self) -> int:
        excess, self.excess = self.excess, 0
        return excess
