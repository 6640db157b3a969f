"""What is examined: a router's directory, its kind and its configuration."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from heliograph.db.database import Migration
from heliograph.ntf import config as ntf_config
from heliograph.ntf.store.schema import MIGRATIONS as NTF_MIGRATIONS
from heliograph.runtime.config.file import FILE_NAME, load
from heliograph.runtime.config.sections import SQLITE
from heliograph.runtime.errors import ConfigError
from heliograph.smp import config as smp_config
from heliograph.smp.store.schema import MIGRATIONS as SMP_MIGRATIONS

__all__ = ["NTF", "SMP", "RouterKind", "Subject", "Thresholds", "find_directories", "part_of"]

_SECTION = re.compile(r"^\s*\[(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RouterKind:
    """One kind of router."""

    name: str
    title: str
    prefix: str
    config: type[smp_config.SmpConfig] | type[ntf_config.NtfConfig]
    migrations: tuple[Migration, ...]


SMP = RouterKind("smp", "messaging router", smp_config.PREFIX, smp_config.SmpConfig, SMP_MIGRATIONS)
NTF = RouterKind(
    "ntf", "notification router", ntf_config.PREFIX, ntf_config.NtfConfig, NTF_MIGRATIONS
)
_PARTS = {part.name: part for part in (SMP, NTF)}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits beyond which a check reports a finding, in bytes and seconds."""

    free: int = 1 << 30
    pending_age: float = 600.0
    lag: float = 1800.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A router's directory with its loaded configuration."""

    directory: Path
    part: RouterKind
    config: smp_config.SmpConfig | ntf_config.NtfConfig
    environ: Mapping[str, str] = field(repr=False)
    thresholds: Thresholds = field(default_factory=Thresholds)
    tables: Path | None = None
    """The data pipeline's tables, if they are not beside the directory."""

    @property
    def store_url(self) -> str:
        return self.config.store_url(self.directory)

    @property
    def store_file(self) -> Path | None:
        """Return the file of the store, None if it is PostgreSQL."""
        url = self.store_url
        return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None

    @property
    def ntf(self) -> ntf_config.NtfConfig | None:
        """The configuration, if it is a notification router's."""
        return self.config if isinstance(self.config, ntf_config.NtfConfig) else None

    @property
    def smp(self) -> smp_config.SmpConfig | None:
        """The configuration, if it is a messaging router's."""
        return self.config if isinstance(self.config, smp_config.SmpConfig) else None

    def command(self, name: str) -> str:
        return f"heliograph {self.part.name} {name} --dir {self.directory}"

    @classmethod
    def load(
        cls,
        directory: Path,
        part: RouterKind,
        environ: Mapping[str, str],
        thresholds: Thresholds,
        tables: Path | None = None,
    ) -> "Subject":
        """Load the configuration. Raises `ConfigError`."""
        config = load(part.config, directory / FILE_NAME, prefix=part.prefix, environ=environ)
        return cls(directory, part, config, environ, thresholds, tables)


def part_of(directory: Path) -> RouterKind:
    """Return the kind of router in a directory. Raises `ConfigError` and `OSError`."""
    file = directory / FILE_NAME
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        raise ConfigError([f"there is no {FILE_NAME} in {directory}"]) from None
    except NotADirectoryError:
        raise ConfigError([f"{directory} is not a directory"]) from None
    sections = set(_SECTION.findall(text))
    for part, other in ((NTF, SMP), (SMP, NTF)):
        if sections & (_sections(part) - _sections(other)):
            return part
    if directory.name in _PARTS:
        return _PARTS[directory.name]
    raise ConfigError(
        [f"{file}: cannot determine which router it is of: it has neither [queues] nor [push.apns]"]
    )


def _sections(part: RouterKind) -> set[str]:
    return {section.name for section in fields(part.config)}


def find_directories(directory: Path) -> Iterator[Path]:
    """Return the directory, or those of the routers in it."""
    if not os.access(directory, os.X_OK):
        yield directory
        return
    inside = [directory / name for name in _PARTS if _is_there(directory / name / FILE_NAME)]
    yield from inside or [directory]


def _is_there(file: Path) -> bool:
    """Return True if access is denied, so that the check reports it."""
    try:
        return file.exists()
    except OSError:
        return True
