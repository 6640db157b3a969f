"""The notification router's configuration: `config.toml`, and what it means to the router.

It reads files that the configuration names, such as passwords, and connects to nothing. What it
says of push providers becomes providers in `heliograph.ntf.providers`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from heliograph.actions.snapshots import SnapshotOptions
from heliograph.net.public import is_public
from heliograph.ntf.actions.options import ActionOptions
from heliograph.ntf.cluster.roster import LEASE, MAX_LEASE
from heliograph.ntf.limits import NtfLimits
from heliograph.ntf.push.options import PushOptions
from heliograph.ntf.push.outbox import OutboxSettings
from heliograph.ntf.router import DAY, NtfSettings
from heliograph.ntf.subscriber import budget
from heliograph.ntf.subscriber.dials import DialLimits
from heliograph.ntf.subscriber.settings import SubscriberSettings
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.config.operations import ControlOptions, StatsOptions
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
from heliograph.transport.client import ClientConfig
from heliograph.transport.socks import SocksMode, SocksProxy, parse_socks
from heliograph.wire.addresses import Host, HostKind

__all__ = ["PREFIX", "NtfConfig"]

PREFIX = "HELIOGRAPH_NTF"
STORE_NAME = "ntf.db"
NEW_TOKENS_PER_MINUTE = 60
COMMANDS_PER_SECOND = 3000.0
MAX_WORKERS = 128

INTRODUCTION = """\
The configuration of a Heliograph notification router, in TOML (https://toml.io).

A key that is commented out has the value shown. Every key can also be set in the environment, as
HELIOGRAPH_NTF_SECTION_KEY: HELIOGRAPH_NTF_PUSH_APNS_KEY_ID=ABC1234567, for instance. The
environment wins over this file, and options of the command line win over both.
After a change: heliograph ntf check-config, then restart the router."""


@dataclass(frozen=True, slots=True)
class NtfListen(Listen):
    __doc__ = Listen.__doc__

    port: int = option(443, "The TCP port. 0 is any free one.", minimum=0, maximum=65535)

    @property
    def is_private(self) -> bool:
        """Return whether the router has only private addresses."""
        return all(map(_is_private, self.hosts))


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """Subscriptions to notifications of messaging routers."""

    use_service_credentials: bool = option(
        False,
        "Whether to subscribe with a certificate, one for each messaging router, where routers"
        " support it: one command then subscribes all queues after a reconnection.",
    )
    own_domains: tuple[str, ...] = option(
        (),
        "Domains of your own messaging routers, which are counted separately.",
        example=("my.org",),
    )
    batch: int = option(900, "How many queues are subscribed at once.", minimum=1, maximum=10_000)
    ping_seconds: float = option(
        60.0, "After how long a silent messaging router gets a PING.", unit="seconds", above=0
    )
    worthless_events_per_second: float = option(
        budget.RATE,
        "Events about queues that are not subscribed, or not understood, that are read from one"
        " messaging router; ten seconds' worth may come at once. Beyond that it is read more"
        " slowly, and disconnected if it goes on.",
        above=0,
    )


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How messaging routers and Web Push endpoints are reached. Clients choose both."""

    socks_proxy: str = option(
        "",
        "[USER:PASSWORD@]HOST:PORT of a SOCKS 5 proxy, such as Tor's, for messaging routers. If"
        " empty: none, and routers that have only onion hosts cannot be reached.",
        secret=True,
    )
    socks_mode: str = option(
        "onion",
        "Whether the proxy is for onion hosts only or for all; it then resolves their names.",
        choices=tuple(mode.value for mode in SocksMode),
    )
    allow_private: bool = option(
        False,
        "Whether to connect to private, loopback and link-local addresses. Clients choose the"
        " hosts: with this, they can make the router probe the network around it.",
    )

    dials: int = option(
        100,
        "Connections being made at a time to messaging routers that never worked; those that did"
        " have as many of their own.",
        minimum=1,
    )
    dials_per_host: int = option(
        8, "The same, to one host, whatever its ports and identities.", minimum=1
    )
    connections_per_host: int = option(
        100,
        "Connections to one host, beyond which only routers that worked before are connected to.",
        minimum=1,
    )
    max_connections: int | None = option(
        None,
        "Connections to messaging routers in all. If not set: three quarters of the files that the"
        " process may have open.",
        minimum=1,
        example=10_000,
    )

    def limits(self) -> DialLimits:
        limits = DialLimits(
            self.dials,
            self.dials,
            self.dials_per_host,
            connections_per_host=self.connections_per_host,
        )
        if self.max_connections is None:
            return limits
        return replace(limits, connections=self.max_connections)

    def check(self) -> Iterator[tuple[str, str]]:
        try:
            self.proxy()
        except ValueError:
            yield "socks_proxy", "must be HOST:PORT or USER:PASSWORD@HOST:PORT"

    def proxy(self) -> SocksProxy | None:
        """Return the proxy. Raises `ValueError`."""
        return parse_socks(self.socks_proxy, SocksMode(self.socks_mode))


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What clients may request; beyond that the answer is QUOTA. 0 is no limit."""

    new_tokens_per_minute: int | None = option(
        None,
        "Registrations and replaced device tokens from one address; clients behind one proxy share"
        " it. If not set: 60, and"
        " connections from this machine, such as those of a Tor daemon, are not limited.",
        minimum=0,
        example=60,
    )
    subscriptions_per_token: int = option(20_000, "Subscriptions of one token.", minimum=0)
    commands_per_second: float | None = option(
        None,
        "Commands on one connection; one second's worth may come at once. If not set: 3000, and"
        " connections from this machine are not limited.",
        minimum=0,
        example=3000.0,
    )
    unverified_days: float = option(
        7.0,
        "After how long a token that was never verified is removed. 0 is never.",
        unit="days",
        minimum=0,
        maximum=36_500,
    )

    def limits(self) -> NtfLimits:
        return NtfLimits(
            RateLimit.of(self.new_tokens_per_minute, NEW_TOKENS_PER_MINUTE),
            self.subscriptions_per_token or None,
            RateLimit.of(self.commands_per_second, COMMANDS_PER_SECOND),
        )


def _is_proxy(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_place = bool(parts.hostname and parts.port) and parts.path in ("", "/")
    except ValueError:
        return False
    return is_place and parts.scheme in ("http", "socks5") and not parts.query


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """Delivery of pushes, and retries."""

    window: int = option(500, "How many pushes each provider may have in flight.", minimum=1)
    ttl_days: float = option(
        3.0,
        "After how long an undelivered push expires.",
        unit="days",
        above=0,
        maximum=36_500,
    )
    backoff_first_seconds: float = option(
        1.0,
        "The wait after the first failure of a push. It doubles with each further one.",
        unit="seconds",
        above=0,
    )
    backoff_last_seconds: float = option(
        300.0,
        "The longest of these waits. A provider that asks for more gets it, up to ten minutes.",
        unit="seconds",
        above=0,
    )
    refused_seconds: float = option(
        300.0,
        "The wait after a provider refused a push for a reason that only you can fix. The first"
        " seven attempts follow each other sooner: the reason may be a clock that jumped.",
        unit="seconds",
        above=0,
    )

    http_client: str = option(
        "wreq",
        "The HTTP client: wreq is fast; h2 is slower, independent of it, and speaks HTTP/2 only"
        " (pip install heliograph[h2]).",
        choices=("wreq", "h2"),
    )

    proxy: str = option(
        "",
        "The URL of a proxy for pushes, http://[USER:PASSWORD@]HOST:PORT or socks5://..., that also"
        " resolves names: it must keep clients' Web Push endpoints out of your private network. If"
        " empty: none, whatever the environment says.",
        secret=True,
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if self.proxy and not _is_proxy(self.proxy):
            yield (
                "proxy",
                "must be http://HOST:PORT or socks5://HOST:PORT, with USER:PASSWORD@ or not",
            )
        elif self.proxy and self.http_client != "wreq":
            yield "proxy", 'needs http_client = "wreq"'
        if self.backoff_last_seconds < self.backoff_first_seconds:
            yield "backoff_last_seconds", "must not be less than backoff_first_seconds"

    def settings(self, apns_padded_length: int) -> OutboxSettings:
        backoff = Backoff(self.backoff_first_seconds, self.backoff_last_seconds)
        return OutboxSettings(
            self.window,
            backoff,
            self.refused_seconds,
            apns_padded_length=apns_padded_length,
        )


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Several processes as one router, on PostgreSQL.

    Limits are the router's: each process has its share, at least one."""

    workers: str = option(
        "",
        'How many processes this machine runs, or "auto" for one for each core. If empty: one,'
        " which has the store to itself. Other machines join with the same keys and store.",
        example="auto",
    )
    lease_seconds: float = option(
        LEASE,
        "After how long without a sign of life others take over the work of a process.",
        unit="seconds",
        minimum=1,
        maximum=MAX_LEASE,
    )

    def check(self) -> Iterator[tuple[str, str]]:
        try:
            self.count()
        except ValueError:
            yield "workers", f'must be "auto" or a number from 1 to {MAX_WORKERS}'

    def count(self) -> int | None:
        """Return the number of workers, None for one process alone. Raises `ValueError`."""
        return worker_count(self.workers) if self.workers else None


def worker_count(text: str) -> int:
    """Return the number of workers that a text means. Raises `ValueError`."""
    if text == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    count = int(text)
    if not 1 <= count <= MAX_WORKERS:
        raise ValueError(text)
    return count


@dataclass(frozen=True, slots=True)
class NtfConfig:
    """All sections of `config.toml`."""

    listen: NtfListen = field(default_factory=NtfListen)
    store: Store = field(default_factory=Store)
    processes: ProcessOptions = field(default_factory=ProcessOptions)
    push: PushOptions = field(default_factory=PushOptions)
    pushes: DeliveryOptions = field(default_factory=DeliveryOptions)
    subscriptions: SubscriptionOptions = field(default_factory=SubscriptionOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    clients: Clients = field(default_factory=Clients)
    stats: StatsOptions = field(default_factory=StatsOptions)
    control: ControlOptions = field(default_factory=ControlOptions)
    metrics: Metrics = field(default_factory=Metrics)
    log: LogOptions = field(default_factory=LogOptions)
    journal: JournalOptions = field(default_factory=JournalOptions)
    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)
    actions: ActionOptions = field(default_factory=ActionOptions)

    def settings(self) -> NtfSettings:
        """Return the router's settings."""
        subscriptions, network = self.subscriptions, self.network
        client = ClientConfig(
            socks=network.proxy(),
            allow=None if network.allow_private else is_public,
            ping_interval=subscriptions.ping_seconds,
        )
        return NtfSettings(
            limits=self.limits.limits(),
            outbox=self.pushes.settings(self.push.apns.padded_length),
            subscriber=SubscriberSettings(
                batch=subscriptions.batch,
                page=subscriptions.batch * 10,
                use_service=subscriptions.use_service_credentials,
                dials=network.limits(),
                worthless_rate=subscriptions.worthless_events_per_second,
                client=client,
            ),
            push_ttl=self.pushes.ttl_days * DAY,
            unverified_ttl=self.limits.unverified_days * DAY or None,
            own_domains=subscriptions.own_domains,
            lease=self.processes.lease_seconds,
        )

    def store_url(self, directory: Path) -> str:
        return self.store.url_in(directory, STORE_NAME)


def _is_private(host: Host) -> bool:
    if host.kind in (HostKind.IPV4, HostKind.IPV6):
        return not is_public(ip_address(host.text))
    return host.text == "localhost"
