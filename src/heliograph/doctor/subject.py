"""What is examined: a router's directory, which router it is, and its configuration."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.db.database import Migration
from heliograph.ntf import config as ntf_config
from heliograph.ntf.schema import MIGRATIONS as NTF_MIGRATIONS
from heliograph.runtime.config import FILE_NAME, load
from heliograph.runtime.errors import ConfigError
from heliograph.runtime.sections import SQLITE
from heliograph.smp import config as smp_config
from heliograph.smp.schema import MIGRATIONS as SMP_MIGRATIONS

__all__ = ["NTF", "SMP", "Part", "Subject", "Thresholds", "find_directories", "part_of"]

_SMP_SECTION = re.compile(r"^\s*\[(queues|notifications)\]", re.MULTILINE)
_NTF_SECTION = re.compile(
    r"^\s*\[(push\.|pushes|subscriptions|network|limits|stats|control)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of router."""

    name: str
    title: str
    prefix: str
    config: type[smp_config.SmpConfig] | type[ntf_config.NtfConfig]
    migrations: tuple[Migration, ...]


SMP = Part("smp", "messaging router", smp_config.PREFIX, smp_config.SmpConfig, SMP_MIGRATIONS)
NTF = Part("ntf", "notification router", ntf_config.PREFIX, ntf_config.NtfConfig, NTF_MIGRATIONS)
_PARTS = {part.name: part for part in (SMP, NTF)}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From when on something is told of. Bytes and seconds."""

    free: int = 1 << 30
    debt_age: float = 600.0
    lag: float = 300.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A directory with a configuration that could be loaded."""

    directory: Path
    part: Part
    config: smp_config.SmpConfig | ntf_config.NtfConfig
    environ: Mapping[str, str] = field(repr=False)
    thresholds: Thresholds = field(default_factory=Thresholds)
    tables: Path | None = None
    """Of the data pipeline, if they are not beside the directory."""

    @property
    def store_url(self) -> str:
        return self.config.store_url(self.directory)

    @property
    def store_file(self) -> Path | None:
        """None if the store is PostgreSQL."""
        url = self.store_url
        return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None

    @property
    def ntf(self) -> ntf_config.NtfConfig | None:
        """The configuration, if it is a notification router's."""
        return self.config if isinstance(self.config, ntf_config.NtfConfig) else None

    def command(self, name: str) -> str:
        return f"heliograph {self.part.name} {name} --dir {self.directory}"

    @classmethod
    def load(
        cls,
        directory: Path,
        part: Part,
        environ: Mapping[str, str],
        thresholds: Thresholds,
        tables: Path | None = None,
    ) -> "Subject":
        """Raises `ConfigError`."""
        config = load(part.config, directory / FILE_NAME, prefix=part.prefix, environ=environ)
        return cls(directory, part, config, environ, thresholds, tables)


def part_of(directory: Path) -> Part:
    """Which router a directory belongs to. Raises `ConfigError`."""
    file = directory / FILE_NAME
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        make = f"heliograph up --dir {directory}, or of one router: heliograph ntf init"
        raise ConfigError(
            [f"no {FILE_NAME} in {directory}: name a router's directory, or make a system: {make}"]
        ) from None
    except OSError as exc:
        raise ConfigError(
            [f"{file}: cannot be read: {exc.strerror}: run this as the router's user, or root"]
        ) from exc
    for section, part in ((_NTF_SECTION, NTF), (_SMP_SECTION, SMP)):
        if section.search(text):
            return part
    if directory.name in _PARTS:
        return _PARTS[directory.name]
    raise ConfigError(
        [f"{file}: cannot tell which router it is of: it has neither [queues] nor [push.apns]"]
    )


def find_directories(directory: Path) -> Iterator[Path]:
    """A router's directory, or those of the routers in it."""
    inside = [directory / name for name in _PARTS if _is_there(directory / name / FILE_NAME)]
    yield from inside or [directory]


def _is_there(file: Path) -> bool:
    """What may not be looked at is, so that it is told of."""
    try:
        return file.exists()
    except OSError:
        return True
