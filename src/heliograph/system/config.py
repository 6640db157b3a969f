"""The configuration of a system: which parts run, the status page and alerts.

Each router has its own `config.toml` in its directory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

from heliograph.pipeline.objectives.objective import DEFAULTS, parse_objectives
from heliograph.runtime.config.options import option
from heliograph.runtime.config.sections import check_address

__all__ = ["INTRODUCTION", "PREFIX", "SystemConfig"]

PREFIX = "HELIOGRAPH_SYSTEM"
SEVERITIES = ("warning", "critical")
STARTTLS = "starttls"
TLS = "tls"

INTRODUCTION = """\
The configuration of a whole Heliograph system, in TOML (https://toml.io): which parts run.

A key that is commented out has the value shown. Every key can also be set in the environment, as
HELIOGRAPH_SYSTEM_SECTION_KEY: HELIOGRAPH_SYSTEM_PAGE_PORT=8700, for instance. The routers have
their own configurations: smp/config.toml and ntf/config.toml. After a change: heliograph down,
heliograph up."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """The status page. Anything but a loopback address asks for the token in `page.token`."""

    host: str = option("127.0.0.1", "The local address to listen on.")
    port: int = option(8650, "The TCP port. 0 is any free one.", minimum=0, maximum=65535)

    token_file: str = option(
        "page.token", "The file with the token. A relative path begins in this directory."
    )

    @property
    def is_loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self) -> Iterator[tuple[str, str]]:
        yield from check_address(self.host)


@dataclass(frozen=True, slots=True)
class AlertOptions:
    """Alerts that the page sends: a router or provider is down, pushes are late, the disk is full,
    a certificate expires, notifications are unaccounted for. Nothing is sent without a target."""

    name: str = option(
        "",
        "How alerts and the page call this installation. If empty: the host of the notification"
        " router, or the machine's name if that is a loopback address.",
    )
    webhook: str = option("", "A URL that gets each alert as a JSON POST.", secret=True)
    ntfy: str = option(
        "", "The URL of an ntfy topic, https://ntfy.sh/TOPIC for instance.", secret=True
    )
    email_to: str = option("", "The address that gets each alert by e-mail.")
    email_from: str = option("heliograph@localhost", "The sender of these e-mails.")
    smtp_host: str = option("localhost", "The SMTP server for e-mails.")
    smtp_port: int = option(
        587, "Its TCP port: usually 587, or 465 with `tls`.", minimum=1, maximum=65535
    )
    smtp_encryption: str = option(
        STARTTLS,
        "How to encrypt the connection: from the start (`tls`), after `STARTTLS`, or not at all,"
        " which is for a server on this machine. Certificates are checked.",
        choices=(STARTTLS, TLS, "none"),
    )
    smtp_user: str = option("", "The user to log in as. If empty: no login.")
    smtp_password: str = option("", "The password of `smtp_user`.", secret=True)
    after_seconds: float = option(
        60.0, "How long a problem must last to be reported.", unit="seconds", minimum=0
    )
    severity: str = option(
        "warning", "Which problems are reported: all, or only critical ones.", choices=SEVERITIES
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if not self.name.isprintable():
            yield "name", "must be one line of text"
        for key in ("webhook", "ntfy"):
            url = getattr(self, key)
            if url and not url.startswith(("https://", "http://")):
                yield key, "must be a URL that begins with https:// or http://"


DECISION_JOBS = ("anomalies", "snapshots", "foreign", "dead-tokens", "best-hours")


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The data pipeline, which accounts for every notification. It needs heliograph[pipeline]."""

    enabled: bool = option(True, "Whether it runs.")
    master: str = option("local[2]", "The Spark master: this machine, or a cluster's URL.")
    stream: bool = option(
        False,
        "Whether Spark keeps running, so that outcomes are known within seconds or, of much data,"
        " minutes. Otherwise it is started when there is something to read, and stopped again.",
    )
    every_seconds: float = option(
        900.0, "How often it is started at most, unless it streams.", unit="seconds", above=0
    )
    memory: str = option("512m", "The memory of Spark. A stream needs 2g, a large system more.")
    account_seconds: float = option(
        60.0,
        "How often the outcomes of all notifications are counted, if it streams.",
        unit="seconds",
        above=0,
    )
    objectives: tuple[str, ...] = option(
        tuple(item.text for item in DEFAULTS),
        "Service-level objectives: what share of notifications a push provider accepts, and in how"
        " many seconds.",
    )

    decide: tuple[str, ...] = option(
        ("anomalies",),
        "What it looks for, to decide on actions for the routers: " + ", ".join(DECISION_JOBS) + "."
        " Anomalies are found within a minute only if it streams.",
        example=("anomalies", "snapshots"),
    )
    decide_write: bool = option(
        False,
        "Whether actions that it decides on are written, so that the routers can apply them."
        " Otherwise they are only logged.",
    )

    def check(self) -> Iterator[tuple[str, str]]:
        for name in self.decide:
            if name not in DECISION_JOBS:
                yield "decide", f"there is no job {name}: there are {', '.join(DECISION_JOBS)}"
        try:
            parse_objectives(self.objectives)
        except ValueError as exc:
            yield "objectives", str(exc)


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """Simulated push providers, for simulated phones. They need heliograph[sim]."""

    enabled: bool = option(False, "Whether they run. `ntf/config.toml` names their addresses.")
    apns_port: int = option(0, "Simulated APNs.", minimum=0, maximum=65535)
    apns_control_port: int = option(0, "Its control endpoint.", minimum=0, maximum=65535)
    webpush_port: int = option(0, "A simulated Web Push service.", minimum=0, maximum=65535)
    webpush_control_port: int = option(0, "Its control endpoint.", minimum=0, maximum=65535)

    def check(self) -> Iterator[tuple[str, str]]:
        if self.enabled:
            for key in ("apns_port", "apns_control_port", "webpush_port", "webpush_control_port"):
                if not getattr(self, key):
                    yield key, "must be set, because the notification router connects to it"


@dataclass(frozen=True, slots=True)
class SystemConfig:
    """All sections of `config.toml`."""

    page: PageOptions = field(default_factory=PageOptions)
    alerts: AlertOptions = field(default_factory=AlertOptions)
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    simulators: SimulatorOptions = field(default_factory=SimulatorOptions)
