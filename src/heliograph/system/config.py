"""The configuration of the whole system: which parts there are, and where they are reached.

Each router has a `config.toml` of its own, in its directory; this one is only about the whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

from heliograph.runtime.options import option

__all__ = ["INTRODUCTION", "PREFIX", "SystemConfig"]

PREFIX = "HELIOGRAPH_SYSTEM"

INTRODUCTION = """\
The configuration of a whole Heliograph system, in TOML (https://toml.io): which parts run.

A key that is commented out has the value shown. Every key can also be set in the environment, as
HELIOGRAPH_SYSTEM_SECTION_KEY: HELIOGRAPH_SYSTEM_PAGE_PORT=8700, for instance. The routers have
configurations of their own: smp/config.toml and ntf/config.toml. After a change: heliograph down,
heliograph up."""


@dataclass(frozen=True, slots=True)
class Page:
    """The status page. Anything but a loopback address asks for the token in `page.token`."""

    host: str = option("127.0.0.1", "The local address to listen on.")
    port: int = option(8650, "The TCP port. 0 is any free one.", minimum=0, maximum=65535)

    @property
    def is_loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The data pipeline, which accounts for every notification. It needs heliograph[pipeline]."""

    enabled: bool = option(True, "Whether it runs beside the routers.")
    master: str = option("local[2]", "The Spark master: this machine, or a cluster's URL.")
    account_seconds: float = option(
        60.0, "How often all fates are counted.", unit="seconds", above=0
    )


@dataclass(frozen=True, slots=True)
class Simulators:
    """Simulated push providers, for phones that are simulated too. They need heliograph[sim]."""

    enabled: bool = option(False, "Whether they run. `ntf/config.toml` says who uses them.")
    apns_port: int = option(0, "Simulated APNs.", minimum=0, maximum=65535)
    apns_control_port: int = option(0, "Its control endpoint.", minimum=0, maximum=65535)
    webpush_port: int = option(0, "A simulated Web Push service.", minimum=0, maximum=65535)
    webpush_control_port: int = option(0, "Its control endpoint.", minimum=0, maximum=65535)

    def check(self) -> Iterator[tuple[str, str]]:
        if self.enabled:
            for key in ("apns_port", "apns_control_port", "webpush_port", "webpush_control_port"):
                if not getattr(self, key):
                    yield key, "must be set, because others have to find it"


@dataclass(frozen=True, slots=True)
class SystemConfig:
    """All sections of `config.toml`."""

    page: Page = field(default_factory=Page)
    pipeline: Pipeline = field(default_factory=Pipeline)
    simulators: Simulators = field(default_factory=Simulators)
