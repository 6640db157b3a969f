"""Settings of the messaging router."""

from dataclasses import dataclass, field

from heliograph.runtime.limits import RateLimit
from heliograph.transport.loop import Allow
from heliograph.transport.socks import SocksProxy

HOUR = 3600
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits on queues, set by the operator."""

    quota: int = 128
    password: bytes | None = None
    allow_new_queues: bool = True


@dataclass(frozen=True, slots=True)
class SmpLimits:
    """None is no limit."""

    new_queues_per_minute: RateLimit | None = None
    """From one address; beyond it the answer is QUOTA."""
    commands_per_second: RateLimit | None = None
    """On one connection; commands beyond it wait."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """How commands are forwarded to other routers. Times in seconds."""

    enabled: bool = True
    allow: Allow | None = None
    """Judges the addresses of destinations, which senders choose; None allows all."""
    socks: SocksProxy | None = None
    own_domains: tuple[str, ...] = ()
    max_connections: int = 1000
    max_in_flight: int = 8192
    max_in_flight_each: int = 1024
    """Forwarded commands that wait for one destination."""
    max_in_flight_of_one: int = 256
    """Forwarded commands of one sender's address that wait."""
    connect_timeout: float = 45.0
    request_timeout: float = 30.0
    retry_after: float = 30.0
    """How long a failed connection attempt is remembered at most; the first ones less."""


@dataclass(frozen=True, slots=True)
class SmpSettings:
    """Times in seconds."""

    rules: Rules = field(default_factory=Rules)
    limits: SmpLimits = field(default_factory=SmpLimits)
    proxy: ProxySettings = field(default_factory=ProxySettings)
    ntf_delivery_interval: float = 1.5
    message_ttl: float = 21 * DAY
    notification_ttl: float = 7 * DAY
    expiration_interval: float = HOUR
    cached_queues: int = 200_000
