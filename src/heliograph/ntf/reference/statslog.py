"""The daily line of the notification router, with the reference's columns in its order."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from heliograph.documents import JsonObject
from heliograph.ntf.observing.stats import Stats
from heliograph.runtime.reference.periods import DAY
from heliograph.runtime.reference.statslog import StatsLog

__all__ = ["NtfStatsLog"]

_FIRST = (
    "tkn_created",
    "tkn_verified",
    "tkn_deleted",
    "sub_created",
    "sub_deleted",
    "ntf_received",
    "ntf_delivered",
)
_LAST = (
    "tkn_replaced",
    "ntf_failed",
    "ntf_cron_delivered",
    "ntf_cron_failed",
    "ntf_vrf_queued",
    "ntf_vrf_delivered",
    "ntf_vrf_failed",
    "ntf_vrf_invalid_tkn",
)


class NtfStatsLog(StatsLog):
    def __init__(
        self,
        stats: Stats,
        copy: Path,
        log: Path | None = None,
        start: float = 0.0,
        interval: float = DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(stats.started_at, copy, log, start, interval, clock)
        self.stats = stats
        self.absorbed: tuple[str, ...] = ()
        """Digests of the files of workers that are counted here, and may not be removed yet."""
        self.scope: tuple[str, ...] = ()
        """Lines about whose statistics these are, if several processes are the router."""

    def counts(self) -> dict[str, int]:
        counters: JsonObject = asdict(self.stats.counters)
        return {name: value for name, value in counters.items() if isinstance(value, int)}

    def columns(self, counted: dict[str, int], now: float) -> list[str]:
        return [
            *(str(counted[name]) for name in _FIRST),
            *self.stats.active_tokens.columns(now),
            *self.stats.active_subs.columns(now),
            *(str(counted[name]) for name in _LAST),
        ]

    def refresh(self, now: float) -> None:
        """Do nothing: everything is counted as it occurs."""

    def dump_counters(self) -> JsonObject:
        return {**self.stats.dump(), "absorbed": self.absorbed}

    def restore_counters(self, saved: JsonObject) -> None:
        self.stats.restore(saved)
