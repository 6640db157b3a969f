"""The state of all processes: written by the supervisor, read by `status` and the page."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from heliograph.runtime.files import write_file


class PartState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """It ended, and will be restarted."""
    STOPPED = "stopped"


@dataclass(slots=True)
class PartStatus:
    state: PartState = PartState.STARTING
    pid: int | None = None
    since: float = 0.0
    restarts: int = 0
    address: str = ""
    """What it printed when it was ready."""
    ended: str = ""
    """How its last run ended, if one did."""


@dataclass(slots=True)
class SystemStatus:
    pid: int
    started_at: float
    is_up: bool = False
    parts: dict[str, PartStatus] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        write_file(path, json.dumps(asdict(self), indent=1).encode(), 0o600)


def read(path: Path) -> SystemStatus | None:
    """Return None if there is none, or another version wrote it."""
    try:
        found = json.loads(path.read_bytes())
        parts = {
            name: PartStatus(**{**part, "state": PartState(part["state"])})
            for name, part in found.pop("parts").items()
        }
        return SystemStatus(**found, parts=parts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
