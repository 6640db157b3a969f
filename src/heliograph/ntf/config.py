"""The notification router's configuration: `config.toml`, and what it means to the router.

It reads files that the configuration names, such as passwords, and connects to nothing. What it
says of push providers becomes providers in `heliograph.ntf.providers`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from heliograph.ntf.backoff import Backoff
from heliograph.ntf.limits import Limits
from heliograph.ntf.outbox import OutboxSettings
from heliograph.ntf.push_options import PushOptions
from heliograph.ntf.router import DAY, NtfSettings
from heliograph.ntf.subscriber import SubscriberSettings
from heliograph.push.endpoints import is_public
from heliograph.runtime.errors import ConfigError
from heliograph.runtime.options import option
from heliograph.runtime.sections import Clients, Journal, Listen, Log, Metrics, Store
from heliograph.transport.client import ClientConfig
from heliograph.transport.socks import SocksMode, SocksProxy
from heliograph.wire.addresses import Host, HostKind, valid_password

__all__ = ["PREFIX", "NtfConfig"]

PREFIX = "HELIOGRAPH_NTF"
STORE_NAME = "ntf.db"
STATS_NAME = "stats.json"

INTRODUCTION = """\
The configuration of a Heliograph notification router, in TOML (https://toml.io).

A key that is commented out has the value shown. Every key can also be set in the environment, as
HELIOGRAPH_NTF_SECTION_KEY: HELIOGRAPH_NTF_PUSH_APNS_KEY_ID=ABC1234567, for instance. The
environment wins over this file, and options of the command line win over both.
After a change: heliograph ntf check-config, then restart the router."""

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_NOT_ALLOWED = "must be printable text without spaces, @, : and /"


@dataclass(frozen=True, slots=True)
class NtfListen(Listen):
    __doc__ = Listen.__doc__

    port: int = option(443, "The TCP port. 0 is any free one.", minimum=0, maximum=65535)

    @property
    def is_private(self) -> bool:
        """Whether only this machine or its neighbours can reach the router."""
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
        (), "Domains of messaging routers of your own, to be counted apart.", example=("my.org",)
    )
    batch: int = option(900, "How many queues are subscribed at once.", minimum=1, maximum=10_000)
    ping_seconds: float = option(
        60.0, "After how long a silent messaging router is asked for life.", unit="seconds", above=0
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
        " hosts: with this, they can have the router try the doors of its neighbours.",
    )

    def check(self) -> Iterator[tuple[str, str]]:
        try:
            self.proxy()
        except ValueError:
            yield "socks_proxy", "must be HOST:PORT or USER:PASSWORD@HOST:PORT"

    def proxy(self) -> SocksProxy | None:
        """Raises `ValueError`."""
        if not self.socks_proxy:
            return None
        parts = urlsplit(f"//{self.socks_proxy}")
        if not parts.hostname or not parts.port or parts.path:
            raise ValueError
        mode = SocksMode(self.socks_mode)
        return SocksProxy(parts.hostname, parts.port, mode, parts.username, parts.password)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What clients may ask for; beyond that the answer is QUOTA. 0 is no limit."""

    new_tokens_per_minute: int = option(
        0, "Registrations from one address. Clients behind one proxy share it.", minimum=0
    )
    subscriptions_per_token: int = option(0, "Subscriptions of one token.", minimum=0)
    commands_per_second: float = option(
        0.0,
        "Commands on one connection, over time; ten seconds' worth may come at once.",
        minimum=0,
    )

    def limits(self) -> Limits:
        return Limits(
            self.new_tokens_per_minute or None,
            self.subscriptions_per_token or None,
            self.commands_per_second or None,
        )


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """What is owed to devices, and how hard the router tries."""

    window: int = option(500, "How many pushes each provider may have under way.", minimum=1)
    ttl_days: float = option(
        3.0,
        "After how long an undelivered push is given up.",
        unit="days",
        above=0,
        maximum=36_500,
    )
    backoff_first_seconds: float = option(
        1.0,
        "The wait after a push failed twice. It doubles with each failure.",
        unit="seconds",
        above=0,
    )
    backoff_last_seconds: float = option(
        300.0, "The longest wait between two tries.", unit="seconds", above=0
    )
    refused_seconds: float = option(
        300.0,
        "The wait after a provider refused a push for a reason only you can put right.",
        unit="seconds",
        above=0,
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if self.backoff_last_seconds < self.backoff_first_seconds:
            yield "backoff_last_seconds", "must not be less than backoff_first_seconds"

    def settings(self) -> OutboxSettings:
        backoff = Backoff(self.backoff_first_seconds, self.backoff_last_seconds)
        return OutboxSettings(self.window, backoff, self.refused_seconds)


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """Statistics: a line a day, as the reference writes it. They survive a restart in any case."""

    log_file: str = option(
        "",
        "The file to append comma-separated lines to. If empty: none. A relative path begins in"
        " this directory.",
        example="stats.csv",
    )
    log_start_time: str = option("00:00", "The time of day, in UTC, of the first line.")
    log_interval_seconds: float = option(
        float(DAY), "The time from one line to the next.", unit="seconds", minimum=1
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if _TIME.fullmatch(self.log_start_time) is None:
            yield "log_start_time", 'must be a time of day such as "00:00"'

    @property
    def start_seconds(self) -> int:
        """Since midnight."""
        hours, minutes = self.log_start_time.split(":")
        return int(hours) * 3600 + int(minutes) * 60

    def path_in(self, directory: Path) -> Path | None:
        return directory / self.log_file if self.log_file else None


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """A port on 127.0.0.1 where operators ask questions: `nc 127.0.0.1 PORT`, then `help`."""

    port: int | None = option(
        None,
        "The TCP port. 0 is any free one, told in the log. If not set, there is none.",
        minimum=0,
        maximum=65535,
        example=5227,
    )
    admin_password: str = option("", "Shows all, with the names of your own routers.", secret=True)
    admin_password_file: str = option("", "A file that has it, instead of `admin_password`.")
    user_password: str = option("", "Shows numbers.", secret=True)
    user_password_file: str = option("", "A file that has it, instead of `user_password`.")

    def check(self) -> Iterator[tuple[str, str]]:
        for role in ("admin", "user"):
            password = getattr(self, f"{role}_password")
            if password and getattr(self, f"{role}_password_file"):
                yield f"{role}_password_file", "there is a password as well: remove one of them"
            if not valid_password(password.encode()):
                yield f"{role}_password", _NOT_ALLOWED

    def passwords_in(self, directory: Path) -> tuple[bytes | None, bytes | None]:
        """The administrator's and the user's. Raises `ConfigError`."""
        admin = _password(directory, "admin", self.admin_password, self.admin_password_file)
        return admin, _password(directory, "user", self.user_password, self.user_password_file)


@dataclass(frozen=True, slots=True)
class NtfConfig:
    """All sections of `config.toml`."""

    listen: NtfListen = field(default_factory=NtfListen)
    store: Store = field(default_factory=Store)
    push: PushOptions = field(default_factory=PushOptions)
    pushes: DeliveryOptions = field(default_factory=DeliveryOptions)
    subscriptions: SubscriptionOptions = field(default_factory=SubscriptionOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    clients: Clients = field(default_factory=Clients)
    stats: StatsOptions = field(default_factory=StatsOptions)
    control: ControlOptions = field(default_factory=ControlOptions)
    metrics: Metrics = field(default_factory=Metrics)
    log: Log = field(default_factory=Log)
    journal: Journal = field(default_factory=Journal)

    def settings(self) -> NtfSettings:
        """What the router is told."""
        subscriptions, network = self.subscriptions, self.network
        client = ClientConfig(
            socks=network.proxy(),
            allow=None if network.allow_private else is_public,
            ping_interval=subscriptions.ping_seconds,
        )
        return NtfSettings(
            limits=self.limits.limits(),
            outbox=self.pushes.settings(),
            subscriber=SubscriberSettings(
                batch=subscriptions.batch,
                page=subscriptions.batch * 10,
                use_service=subscriptions.use_service_credentials,
                client=client,
            ),
            debt_ttl=self.pushes.ttl_days * DAY,
            own_domains=subscriptions.own_domains,
        )

    def store_url(self, directory: Path) -> str:
        return self.store.url_in(directory, STORE_NAME)


def _is_private(host: Host) -> bool:
    if host.kind in (HostKind.IPV4, HostKind.IPV6):
        return not is_public(ip_address(host.text))
    return host.text == "localhost"


def _password(directory: Path, role: str, password: str, name: str) -> bytes | None:
    if not name:
        return password.encode() or None
    key, file = f"[control] {role}_password_file", directory / name
    try:
        found = file.read_bytes().strip()
    except OSError as exc:
        raise ConfigError([f"{key}: {file}: cannot be read: {exc.strerror}"]) from exc
    if not found or not valid_password(found):
        raise ConfigError([f"{key}: {file}: {_NOT_ALLOWED}, and not empty"])
    return found
