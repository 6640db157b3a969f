"""The messaging router's configuration: `config.toml`, and what it means to the router."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.runtime.errors import ConfigError
from heliograph.runtime.options import option
from heliograph.runtime.sections import Clients, Journal, Listen, Log, Metrics, Store
from heliograph.smp.context import Rules
from heliograph.smp.router import DAY, SmpSettings
from heliograph.wire.addresses import valid_password

__all__ = ["PREFIX", "SmpConfig"]

PREFIX = "HELIOGRAPH_SMP"
STORE_NAME = "smp.db"

INTRODUCTION = """\
The configuration of a Heliograph messaging router, in TOML (https://toml.io).

A key that is commented out has the value shown. Every key can also be set in the environment, as
HELIOGRAPH_SMP_SECTION_KEY: HELIOGRAPH_SMP_LISTEN_PORT=5224, for instance. The environment wins over
this file, and options of the command line win over both.
After a change: heliograph smp check-config, then restart the router."""

_NOT_ALLOWED = "must be printable text without spaces, @, : and /"


@dataclass(frozen=True, slots=True)
class SmpListen(Listen):
    __doc__ = Listen.__doc__

    port: int = option(5223, "The TCP port. 0 is any free one.", minimum=0, maximum=65535)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Queues and their messages."""

    allow_new: bool = option(True, "Whether queues can be created.")
    password: str = option(
        "", "What clients must know to create queues. If empty: nothing.", secret=True
    )
    password_file: str = option(
        "",
        "A file that has the password, instead of `password`. A relative path begins in this"
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
            yield "password", _NOT_ALLOWED

    def password_in(self, directory: Path) -> bytes | None:
        """The password, from wherever it is. Raises `ConfigError`."""
        if not self.password_file:
            return self.password.encode() or None
        file = directory / self.password_file
        try:
            password = file.read_bytes().strip()
        except OSError as exc:
            raise ConfigError(
                [f"[queues] password_file: {file}: cannot be read: {exc.strerror}"]
            ) from exc
        if not password or not valid_password(password):
            raise ConfigError([f"[queues] password_file: {file}: {_NOT_ALLOWED}, and not empty"])
        return password


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
class SmpConfig:
    """All sections of `config.toml`."""

    listen: SmpListen = field(default_factory=SmpListen)
    store: Store = field(default_factory=Store)
    queues: QueueOptions = field(default_factory=QueueOptions)
    notifications: NotificationOptions = field(default_factory=NotificationOptions)
    clients: Clients = field(default_factory=Clients)
    metrics: Metrics = field(default_factory=Metrics)
    log: Log = field(default_factory=Log)
    journal: Journal = field(default_factory=Journal)

    def settings(self, directory: Path) -> SmpSettings:
        """What the router is told. Raises `ConfigError` if the password cannot be read."""
        queues, notifications = self.queues, self.notifications
        return SmpSettings(
            rules=Rules(
                quota=queues.quota,
                password=queues.password_in(directory),
                allow_new_queues=queues.allow_new,
            ),
            ntf_delivery_interval=notifications.delivery_interval,
            message_ttl=queues.message_ttl_days * DAY,
            notification_ttl=notifications.ttl_days * DAY,
        )

    def store_url(self, directory: Path) -> str:
        return self.store.url_in(directory, STORE_NAME)
