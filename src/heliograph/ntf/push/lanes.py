"""Windows: how many pushes of a provider, and of each of its hosts, may be in flight.

Clients name the hosts of Web Push. So one host may take a tenth of the window, unverified devices
a fifth of it, half of that for retries, and all hosts that do not answer a fifth. A host that does
not answer gets one push at a time, with growing pauses; pushes to unverified devices that it does
not answer do not count for others. A provider that limits our account gets one at a time, too.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.push.provider import Provider, PushOutcome, RetryLater
from heliograph.runtime.backoff import Backoff
from heliograph.wire.ntf.tokens import WPDeviceToken

HOST_DIVISOR = 10
UNVERIFIED_DIVISOR = 5
SILENT_DIVISOR = 5
BUSY_DELAY = 2.0
"""Seconds until a push is tried again whose host has enough in flight."""
HOST_BACKOFF = Backoff(first=1.0, last=300.0)
ACCOUNT_BACKOFF = Backoff(first=1.0, last=300.0)
MAX_IDLE_HOSTS = 10_000
UNVERIFIED = "unverified"


class Pause(NamedTuple):
    """A time without pushes to one host and port, or to the provider if `host` is empty."""

    host: str
    until: float
    failures: int
    """Failures in a row, of which this is the last."""


@dataclass(slots=True)
class _HostLoad:
    active: int = 0
    failures: int = 0
    """Times that it did not answer, since the last answer."""
    blocked_until: float = 0.0


@dataclass(slots=True)
class Lane:
    """One provider, and its pushes in flight."""

    provider: Provider
    window: int
    active: int = 0
    waiting: bool = False
    """The store may have more that is due than there was room for."""
    paused_until: float = 0.0
    """When to try again, after the provider limited our account."""
    _refusals: int = 0
    """Times that it did, since the last other answer."""
    _unverified: int = 0
    _hosts: dict[str, _HostLoad] = field(default_factory=dict)
    _verified: Counter[str] = field(default_factory=Counter)
    """Pushes to verified devices in flight, by host without port."""
    _tried: set[str] = field(default_factory=set)
    """Hosts that did not answer, and have a push in flight again."""

    def has_room(self, now: float) -> bool:
        return self.active < self._limit(now)

    def wants_more(self, now: float) -> bool:
        """Return whether to refill: half a window at a time, so that few pushes cost a query."""
        limit = self._limit(now)
        return self.waiting and limit > 0 and self.active <= limit // 2

    def _limit(self, now: float) -> int:
        if now < self.paused_until:
            return 0
        return 1 if self._refusals else self.window

    def delay(self, push: PendingPush, now: float) -> float:
        """Return the seconds to postpone a push for the sake of other hosts, usually 0."""
        name = _host(push)
        if name is None:
            return 0.0
        if push.kind is PushKind.VERIFICATION:
            share = self.window // UNVERIFIED_DIVISOR
            # Retries leave room: any number of silent hosts must not keep a new device waiting.
            if self._unverified >= max(share // 2 if push.attempts else share, 1):
                return BUSY_DELAY
        elif self._verified[_without_port(name)] >= max(self.window // HOST_DIVISOR, 1):
            return BUSY_DELAY
        host = self._hosts.get(name)
        if host is None:
            return 0.0
        if now < host.blocked_until:
            return host.blocked_until - now
        if host.failures and len(self._tried) >= max(self.window // SILENT_DIVISOR, 1):
            return BUSY_DELAY
        limit = 1 if host.failures else max(self.window // HOST_DIVISOR, 1)
        return 0.0 if host.active < limit else BUSY_DELAY

    def start(self, push: PendingPush) -> None:
        self.active += 1
        name = _host(push)
        if name is not None:
            host = self._hosts.setdefault(name, _HostLoad())
            host.active += 1
            if host.failures:
                self._tried.add(name)
            self._count(push, name, 1)

    def end(self, push: PendingPush, outcome: PushOutcome, now: float) -> Pause | None:
        """Record the outcome of a push; return the pause that begins with it, if one does."""
        self.active -= 1
        pause = self._pause_or_resume(outcome, now)
        name = _host(push)
        if name is None:
            return pause
        self._count(push, name, -1)
        self._tried.discard(name)
        host = self._hosts[name]
        host.active -= 1
        if isinstance(outcome, RetryLater) and outcome.connection:
            if now >= host.blocked_until:  # pushes in flight fail together
                host.failures += 1
                host.blocked_until = now + HOST_BACKOFF.delay(host.failures, 0.0)
                pause = Pause(name, host.blocked_until, host.failures)
        else:
            host.failures, host.blocked_until = 0, 0.0
        if not host.active and not host.failures:
            del self._hosts[name]
        elif len(self._hosts) > MAX_IDLE_HOSTS:
            self._forget_idle(now)
        return pause

    def pause(self, pause: Pause, now: float) -> None:
        """Keep a pause that another process has begun."""
        if not pause.host:
            if pause.until > self.paused_until:
                self.paused_until, self._refusals = pause.until, pause.failures
            return
        host = self._hosts.setdefault(pause.host, _HostLoad())
        if pause.until > host.blocked_until:
            host.blocked_until, host.failures = pause.until, pause.failures
        if len(self._hosts) > MAX_IDLE_HOSTS:
            self._forget_idle(now)

    def _count(self, push: PendingPush, name: str, by: int) -> None:
        if push.kind is PushKind.VERIFICATION:
            self._unverified += by
            return
        host = _without_port(name)
        self._verified[host] += by
        if not self._verified[host]:
            del self._verified[host]

    def _pause_or_resume(self, outcome: PushOutcome, now: float) -> Pause | None:
        if not isinstance(outcome, RetryLater) or not (outcome.account_wide or outcome.connection):
            self._refusals = 0
        elif outcome.account_wide and now >= self.paused_until:  # pushes in flight fail together
            self._refusals += 1
            asked = min(outcome.after or 0.0, ACCOUNT_BACKOFF.last)
            self.paused_until = now + ACCOUNT_BACKOFF.delay(self._refusals, 0.0, asked)
            return Pause("", self.paused_until, self._refusals)
        return None

    def _forget_idle(self, now: float) -> None:
        for name, host in tuple(self._hosts.items()):
            if not host.active and host.blocked_until <= now:
                del self._hosts[name]


def _host(push: PendingPush) -> str | None:
    """Return the host and port that a client chose, None for a provider's own.

    Verifications have another: anybody may register a port or a path of a host that answers none.
    """
    if not isinstance(push.device, WPDeviceToken):
        return None
    name = f"{push.device.host.lower()}:{push.device.port or 443}"
    return f"{UNVERIFIED} {name}" if push.kind is PushKind.VERIFICATION else name


def _without_port(name: str) -> str:
    return name.rpartition(":")[0]
