"""Sections of a configuration that every router has. A router subclasses them for its defaults."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from heliograph.runtime import logs
from heliograph.runtime.config.options import option
from heliograph.runtime.listening import bind_address, decode_hosts
from heliograph.transport.server import Limits
from heliograph.wire.addresses import Host

SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql://", "postgres://")
REMOVE_OLDEST = "remove_oldest"
REFUSE_NEW = "refuse_new"


@dataclass(frozen=True, slots=True)
class Listen:
    """The public address of the router, and where it listens."""

    host: str = option(
        "127.0.0.1",
        "The name or address that clients use. It is part of the router's address, so it must mean"
        " this router everywhere. Several are separated by commas, an onion host for instance.",
    )
    port: int = option(0, "The TCP port. 0 is any free one.", minimum=0, maximum=65535)
    bind: str = option(
        "",
        'The local address to listen on, or "*" for all. If empty: `host` if it is an address or'
        " localhost, else all.",
    )

    @property
    def hosts(self) -> tuple[Host, ...]:
        return decode_hosts(self.host)

    @property
    def bind_address(self) -> str | None:
        """The address to listen on; None is all addresses."""
        return bind_address(self.hosts, self.bind)

    def check(self) -> Iterator[tuple[str, str]]:
        try:
            _ = self.hosts
        except ValueError:
            yield "host", "must be a host name or an IP address, or several separated by commas"


@dataclass(frozen=True, slots=True)
class Store:
    """The store of the router's state."""

    url: str = option(
        "",
        "sqlite:///PATH or postgresql://USER@HOST/DATABASE. If empty: an SQLite file in this"
        " directory. A relative PATH begins in this directory; an absolute one makes four slashes.",
        secret=True,
    )

    def url_in(self, directory: Path, default_name: str) -> str:
        """Return the URL with an absolute path."""
        if not self.url:
            return f"{SQLITE}{directory.absolute() / default_name}"
        if self.url.startswith(SQLITE):
            return f"{SQLITE}{directory.absolute() / self.url.removeprefix(SQLITE)}"
        return self.url

    def check(self) -> Iterator[tuple[str, str]]:
        is_sqlite = self.url.startswith(SQLITE) and self.url != SQLITE
        if self.url and not is_sqlite and not self.url.startswith(POSTGRESQL):
            yield "url", "must be sqlite:///PATH or postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True)
class Clients:
    """Limits of client connections."""

    max_connections: int = option(
        100_000, "How many connections there may be; more are closed at once.", minimum=1
    )
    inactive_after_seconds: float = option(
        21_600.0,
        "Close a connection without subscriptions after this time without a command. 0: never.",
        unit="seconds",
        minimum=0,
    )
    check_interval_seconds: float = option(
        10.0,
        "How often to check for connections that are inactive or do not read. A shorter"
        " `inactive_after_seconds` is used instead.",
        unit="seconds",
        above=0,
    )
    handshake_timeout_seconds: float = option(
        30.0, "How long a handshake may take.", unit="seconds", above=0
    )
    write_timeout_seconds: float = option(
        60.0,
        "Disconnect a client that does not read for this time.",
        unit="seconds",
        above=0,
    )
    max_unanswered: int = option(
        256,
        "Stop reading from a connection that has this many commands unanswered.",
        minimum=1,
    )

    def limits(self) -> Limits:
        inactive_after = self.inactive_after_seconds or None
        return Limits(
            max_connections=self.max_connections,
            handshake_timeout=self.handshake_timeout_seconds,
            write_timeout=self.write_timeout_seconds,
            inactive_after=inactive_after,
            check_interval=min(self.check_interval_seconds, inactive_after or math.inf),
            max_unanswered=self.max_unanswered,
        )


@dataclass(frozen=True, slots=True)
class Metrics:
    """HTTP for operators: /metrics (Prometheus), /livez and /readyz. It has no authentication."""

    host: str = option("127.0.0.1", "The local address to listen on. Keep it private.")
    port: int | None = option(
        None,
        "The TCP port. 0 is any free one, which is logged. If not set, there is no HTTP.",
        minimum=0,
        maximum=65535,
        example=9100,
    )

    def check(self) -> Iterator[tuple[str, str]]:
        yield from check_address(self.host)


def check_address(host: str) -> Iterator[tuple[str, str]]:
    """Refuse an empty address, which would mean all addresses."""
    if not host.strip():
        yield "host", "must be an address or a name; 0.0.0.0 is all addresses"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Logs on standard error. They never reveal who talks to whom."""

    format: str = option("text", "For people, or one JSON object a line.", choices=logs.FORMATS)
    level: str = option("info", "The lowest level that is logged.", choices=logs.LEVELS)


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Events for the data pipeline, which identify nobody."""

    path: str = option(
        "",
        "The directory to write segments to, or its file:// URL. If empty: none. A relative path"
        " begins in this directory. Several routers may share one.",
        example="journal",
    )
    max_megabytes: int = option(
        1024, "How much disk the router's segments may take.", unit="megabytes", minimum=1
    )
    when_full: str = option(
        REMOVE_OLDEST,
        "What happens at `max_megabytes` when no segment is left that the pipeline has"
        " acknowledged: the oldest others are removed, or no new event is written until there is"
        " room. Either is counted and logged.",
        choices=(REMOVE_OLDEST, REFUSE_NEW),
    )
    keep_days: float = option(
        7.0,
        "How long segments stay after the pipeline has acknowledged them, if there is room.",
        unit="days",
        minimum=0,
    )
    seal_seconds: float = option(
        5.0,
        "How old an event gets before others can read it. Less makes more and smaller files. While"
        " a pipeline streams, it is at most a quarter of a second.",
        unit="seconds",
        above=0,
        maximum=3600,
    )

    key_epoch: int = option(
        0,
        "Increase it to give tokens, subscriptions and routers other hashes from the next start on,"
        " so that events before and after cannot be linked by them. Change it while no push is"
        " pending: the pipeline cannot join what is.",
        minimum=0,
    )

    def path_in(self, directory: Path) -> Path | None:
        if not self.path:
            return None
        if (url := urlsplit(self.path)).scheme == "file":
            return Path(unquote(url.path))
        return directory / self.path

    def check(self) -> Iterator[tuple[str, str]]:
        url = urlsplit(self.path)
        if url.scheme == "file":
            if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
                yield "path", "must be file:///PATH: a directory of this machine, from its root"
        elif "://" in self.path:
            yield (
                "path",
                (
                    "must be a directory or a file:// URL: the router writes to local files only."
                    " Mount other storage, or let the pipeline copy from here"
                ),
            )
