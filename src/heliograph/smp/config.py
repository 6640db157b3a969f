"""The messaging router's configuration: `config.toml`, and what it means to the router."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.actions.snapshots import SnapshotOptions
from heliograph.net.public import is_public
from heliograph.runtime.config.operations import (
    NOT_ALLOWED,
    ControlOptions,
    StatsOptions,
    read_password,
)
from heliograph.runtime.config.options import option
from heliograph.runtime.config.sections import (
    Clients,
    JournalOptions,
    Listen,
    LogOptions,
    Metrics,
    Store,
)
from heliograph.runtime.limits import RateLimit
from heliograph.smp.settings import DAY, HOUR, ProxySettings, Rules, SmpLimits, SmpSettings
from heliograph.transport.socks import SocksMode, SocksProxy, parse_socks
from heliograph.wire.addresses import valid_password

__all__ = ["PREFIX", "SmpConfig"]

PREFIX = "HELIOGRAPH_SMP"
STORE_NAME = "smp.db"
NEW_QUEUES_PER_MINUTE = 1000
COMMANDS_PER_SECOND = 3000.0

INTRODUCTION = """\
The configuration of a Heliograph messaging router, in TOML (https://toml.io).

A key that is commented out has the value shown. Every key can also be set in the environment, as
HELIOGRAPH_SMP_SECTION_KEY: HELIOGRAPH_SMP_LISTEN_PORT=5224, for instance. The environment wins over
this file, and options of the command line win over both.
After a change: heliograph smp check-config, then restart the router."""


@dataclass(frozen=True, slots=True)
class SmpListen(Listen):
    __doc__ = Listen.__doc__

    port: int = option(5223, "The TCP port. 0 is any free one.", minimum=0, maximum=65535)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Queues and their messages."""

    allow_new: bool = option(
        True, "Whether queues can be created. Those that exist work, and so does forwarding."
    )
    password: str = option(
        "",
        "The password that clients need to create queues, and to have commands forwarded. Empty for"
        " none.",
        secret=True,
    )
    password_file: str = option(
        "",
        "A file with the password, instead of `password`. A relative path starts in this"
        " directory.",
    )
    quota: int = option(128, "How many messages a queue holds before senders must wait.", minimum=1)
    message_ttl_days: float = option(
        21.0,
        "After how long an undelivered message is deleted.",
        unit="days",
        above=0,
        maximum=36_500,
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if self.password and self.password_file:
            yield "password_file", "there is a password as well: remove one of them"
        if not valid_password(self.password.encode()):
            yield "password", NOT_ALLOWED

    def password_in(self, directory: Path) -> bytes | None:
        """Return the password from the configuration or its file. Raises `ConfigError`."""
        return read_password(directory, "[queues] password", self.password, self.password_file)


@dataclass(frozen=True, slots=True)
class SmpLimitOptions:
    """What clients may request. 0 is no limit."""

    new_queues_per_minute: int | None = option(
        None,
        "Queues created from one address, or from one IPv6 /64; clients behind one proxy share it."
        " Beyond it the answer is QUOTA. If not set: 1000, and connections from this machine, such"
        " as those of a Tor daemon, are not limited.",
        minimum=0,
        example=1000,
    )
    commands_per_second: float | None = option(
        None,
        "Commands on one connection; one second's worth may come at once, and more wait. If not"
        " set: 3000, and connections from this machine are not limited.",
        minimum=0,
        example=3000.0,
    )

    def limits(self) -> SmpLimits:
        return SmpLimits(
            RateLimit.of(self.new_queues_per_minute, NEW_QUEUES_PER_MINUTE),
            RateLimit.of(self.commands_per_second, COMMANDS_PER_SECOND),
        )


@dataclass(frozen=True, slots=True)
class NotificationOptions:
    """Notifications of messages, for the notification routers that subscribe to them."""

    delivery_interval: float = option(
        1.5,
        "How often notifications are delivered. More makes larger batches; 0 delivers at once.",
        unit="seconds",
        minimum=0,
    )
    ttl_days: float = option(
        7.0,
        "After how long an undelivered notification is deleted.",
        unit="days",
        above=0,
        maximum=36_500,
    )


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Private routing: commands that senders have this router forward to other routers."""

    enabled: bool = option(
        True, "Whether to forward commands. Clients need the password of [queues], if there is one."
    )
    allow_private: bool = option(
        False,
        "Whether to connect to private, loopback and link-local addresses. Senders choose the"
        " destinations: with this, they can reach the router's own network.",
    )
    max_connections: int = option(
        1000,
        "How many sessions with other routers may be open. Beyond that, the one that has not"
        " answered for the longest time is closed. At most a quarter as many are opened at a time.",
        minimum=1,
    )
    max_in_flight: int = option(
        8192,
        "How many forwarded commands may wait for an answer, 16 KB each. Beyond that, the oldest is"
        " answered with a timeout. The senders of one address, or of one IPv6 /64, may have a 32nd"
        " of them.",
        minimum=1,
    )
    connect_timeout: float = option(
        45.0, "How long to wait for a connection to another router.", unit="seconds", above=0
    )
    request_timeout: float = option(
        30.0, "How long to wait for the answer to a forwarded command.", unit="seconds", above=0
    )
    retry_after: float = option(
        30.0,
        "How long a router that could not be reached is not tried again, at most: 1 second after"
        " the first attempt, and twice as long after each further one.",
        unit="seconds",
        minimum=0,
    )
    own_domains: tuple[str, ...] = option(
        (),
        "Domains of your own messaging routers, which are counted separately.",
        example=("my.org",),
    )
    socks_proxy: str = option(
        "",
        "[USER:PASSWORD@]HOST:PORT of a SOCKS 5 proxy, such as Tor's. If empty: none, and routers"
        " that have only onion hosts cannot be reached.",
        secret=True,
    )
    socks_mode: str = option(
        "onion",
        "Whether the SOCKS proxy is for onion hosts only or for all; it then resolves their names.",
        choices=tuple(mode.value for mode in SocksMode),
    )

    def check(self) -> Iterator[tuple[str, str]]:
        try:
            self.socks()
        except ValueError:
            yield "socks_proxy", "must be HOST:PORT or USER:PASSWORD@HOST:PORT"

    def socks(self) -> SocksProxy | None:
        """Return the SOCKS proxy. Raises `ValueError`."""
        return parse_socks(self.socks_proxy, SocksMode(self.socks_mode))

    def settings(self) -> ProxySettings:
        return ProxySettings(
            enabled=self.enabled,
            allow=None if self.allow_private else is_public,
            socks=self.socks(),
            own_domains=self.own_domains,
            max_connections=self.max_connections,
            max_in_flight=self.max_in_flight,
            max_in_flight_each=max(1, self.max_in_flight // 8),
            max_in_flight_of_one=max(1, self.max_in_flight // 32),
            connect_timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            retry_after=self.retry_after,
        )


@dataclass(frozen=True, slots=True)
class SmpControlOptions(ControlOptions):
    __doc__ = ControlOptions.__doc__

    daily_blocks: int = option(
        20,
        "How many queues may be blocked in a day (UTC), so that a stolen password blocks no more."
        " 0 is no limit.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class SmpConfig:
    """All sections of `config.toml`."""

    listen: SmpListen = field(default_factory=SmpListen)
    store: Store = field(default_factory=Store)
    queues: QueueOptions = field(default_factory=QueueOptions)
    notifications: NotificationOptions = field(default_factory=NotificationOptions)
    proxy: ProxyOptions = field(default_factory=ProxyOptions)
    limits: SmpLimitOptions = field(default_factory=SmpLimitOptions)
    clients: Clients = field(default_factory=Clients)
    stats: StatsOptions = field(default_factory=StatsOptions)
    control: SmpControlOptions = field(default_factory=SmpControlOptions)
    metrics: Metrics = field(default_factory=Metrics)
    log: LogOptions = field(default_factory=LogOptions)
    journal: JournalOptions = field(default_factory=JournalOptions)
    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)

    def settings(self, directory: Path) -> SmpSettings:
        """Return the router's settings. Raises `ConfigError` if the password cannot be read."""
        queues, notifications = self.queues, self.notifications
        message_ttl = queues.message_ttl_days * DAY
        return SmpSettings(
            rules=Rules(
                quota=queues.quota,
                password=queues.password_in(directory),
                allow_new_queues=queues.allow_new,
            ),
            limits=self.limits.limits(),
            proxy=self.proxy.settings(),
            ntf_delivery_interval=notifications.delivery_interval,
            message_ttl=message_ttl,
            notification_ttl=notifications.ttl_days * DAY,
            expiration_interval=min(HOUR, message_ttl / 10),
        )

    def store_url(self, directory: Path) -> str:
        return self.store.url_in(directory, STORE_NAME)
