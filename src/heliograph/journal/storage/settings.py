"""The settings of a journal's writer."""

from dataclasses import dataclass

from heliograph.journal.heads import HEARTBEAT

__all__ = ["MEBIBYTE", "JournalSettings"]

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Settings of a writer; times in seconds. `max_bytes` limits sealed segments."""

    sync_interval: float = 0.05
    seal_after: float = 5.0
    stream_seal_after: float = 0.25
    """The same while a pipeline streams."""
    seal_bytes: int = 16 * MEBIBYTE
    max_bytes: int = 1024 * MEBIBYTE
    refuse_new: bool = False
    """At `max_bytes`, stop writing instead of removing segments that were not acknowledged."""
    keep_acknowledged: float = 7 * 86_400.0
    heartbeat: float = HEARTBEAT
    """Seconds after which an idle run renews its head."""
    is_shared: bool = False
    """Other processes of the same router write to the same directory."""
