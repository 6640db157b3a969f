"""Time series for the charts, in memory: rates and latency between samples, with gaps. Pure."""

from collections import deque
from collections.abc import Mapping

from heliograph.documents import JsonObject
from heliograph.web.metrics.samples import Sample, quantile

__all__ = ["COLUMNS", "LATENCY", "RANGES", "Series", "growth"]

LATENCY = "heliograph_ntf_push_latency_seconds"
_RATES = {
    "notifications": ("ntf", "simplex_ntf_notifications_received"),
    "accepted": ("ntf", "heliograph_ntf_provider_accepted_total"),
    "failed": ("ntf", "heliograph_ntf_provider_failed_total"),
    "messages": ("smp", "simplex_smp_messages_sent"),
    "messages_received": ("smp", "simplex_smp_messages_received"),
}
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_GAUGES = {"pending": ("ntf", "heliograph_ntf_pending_pushes")}
COLUMNS = (*_RATES, *_QUANTILES, *_GAUGES)
RANGES = {"10m": (2.0, 300), "24h": (60.0, 1440)}
"""The step in seconds and the number of rows of each range."""

Samples = Mapping[str, Sample | None]
Row = tuple[float, dict[str, float | None]]


class Series:
    """Rows of one step. A router that does not answer leaves a gap."""

    def __init__(self, step: float, kept: int) -> None:
        self._step = step
        self._rows: deque[Row] = deque(maxlen=kept)
        self._begin: tuple[float, Samples] | None = None

    def add(self, at: float, samples: Samples) -> None:
        """Add the samples of one moment, by router; None if it did not answer."""
        if self._begin is None:
            self._begin = at, samples
        elif at - self._begin[0] >= self._step * 0.9:
            self._rows.append((at, _row(self._begin[1], samples)))
            self._begin = at, samples

    def after(self, since: float) -> JsonObject:
        """Return the rows after a moment, column by column."""
        rows = [(at, row) for at, row in self._rows if at > since]
        columns: dict[str, list[float | None]] = {
            name: [row[name] for _, row in rows] for name in COLUMNS
        }
        return {"step": self._step, "at": [round(at, 1) for at, _ in rows], **columns}


def growth(earlier: Sample, later: Sample, name: str) -> float:
    """Return how much a counter grew; one that fell began again at zero."""
    grown = later.get(name) - earlier.get(name)
    return grown if grown >= 0 else later.get(name)


def _row(earlier: Samples, later: Samples) -> dict[str, float | None]:
    row: dict[str, float | None] = dict.fromkeys(COLUMNS)
    for column, (router, name) in _RATES.items():
        first, last = earlier.get(router), later.get(router)
        if first is not None and last is not None and last.at > first.at:
            row[column] = round(growth(first, last, name) / (last.at - first.at), 2)
    first, last = earlier.get("ntf"), later.get("ntf")
    if first is not None and last is not None:
        for column, part in _QUANTILES.items():
            value = quantile(part, last.buckets(LATENCY), first.buckets(LATENCY))
            row[column] = None if value is None else round(value * 1000, 1)
    for column, (router, name) in _GAUGES.items():
        sample = later.get(router)
        row[column] = None if sample is None else sample.get(name)
    return row
