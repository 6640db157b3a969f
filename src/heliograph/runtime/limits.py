"""Rate limits on what clients may request. Pure: the time is an argument."""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address

WINDOW_SECONDS = 60.0
"""Seconds over which the requests of an address are counted."""

IPV6_PREFIX = 64
"""Bits of an IPv6 address that name one customer, who may use all addresses behind them."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A rate, and whether it applies to connections from this machine."""

    rate: float
    applies_to_loopback: bool = True

    @classmethod
    def of(cls, configured: float | None, default: float) -> "RateLimit | None":
        """Return the limit of an option: None is the default, without loopback; 0 is no limit."""
        if configured is None:
            return cls(default, applies_to_loopback=False)
        return cls(configured) if configured else None

    def applies_to(self, address: str) -> bool:
        return self.applies_to_loopback or not is_loopback(address)


class Allowance:
    """The commands that one connection may still send: at most one second's worth at once."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._burst = self._left = max(rate, 1.0)
        self._at = now

    def take(self, now: float) -> bool:
        """Use one command; return False if none is left."""
        self._left = min(self._left + (now - self._at) * self._rate, self._burst)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    @property
    def wait(self) -> float:
        """Return the seconds from the last `take` until there is one command."""
        return max(1 - self._left, 0.0) / self._rate


def allowance_for(limit: RateLimit | None, address: str, now: float) -> Allowance | None:
    """Return the allowance of a new connection, or None if it is not limited."""
    if limit is None or not limit.applies_to(address):
        return None
    return Allowance(limit.rate, now)


class AddressLimit:
    """Requests of each address within a minute; those of one IPv6 /64 count together."""

    def __init__(self, limit: RateLimit | None) -> None:
        self._limit = limit
        self._recent: dict[str, deque[float]] = {}
        self._forget_at = 0.0

    def __len__(self) -> int:
        """Return the number of remembered addresses."""
        return len(self._recent)

    def take(self, address: str, now: float) -> bool:
        """Count a request, unless there were too many from its address in a minute."""
        limit = self._limit
        if limit is None or not limit.applies_to(address):
            return True
        if now >= self._forget_at:
            self._forget(now)
        recent = self._recent.setdefault(network_of(address), deque())
        while recent and recent[0] < now - WINDOW_SECONDS:
            recent.popleft()
        if len(recent) >= limit.rate:
            return False
        recent.append(now)
        return True

    def _forget(self, now: float) -> None:
        """Forget addresses without requests for a minute; costly, so once a minute."""
        self._forget_at = now + WINDOW_SECONDS
        for address, recent in list(self._recent.items()):
            if not recent or recent[-1] < now - WINDOW_SECONDS:
                del self._recent[address]


@lru_cache(maxsize=1024)
def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """Return what stands for one customer: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((found, IPV6_PREFIX), strict=False))
