"""Baselines: what was usual for a subject, and how far the newest window departs from it. Pure.

The sums of ten seconds are kept for as long as a baseline needs them, so that each comparison reads
only what is new. What is in a complete window does not change any more, unless a process that was
behind, and not waited for, writes again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heliograph.pipeline.decisions.rules import LARGE_METRICS, RULES, AnomalyRule
from heliograph.pipeline.decisions.windows import HISTORY, WINDOW, RouterWindows
from heliograph.pipeline.jobs.rates import BUCKET

__all__ = ["MIN_HISTORY", "Anomaly", "Baselines", "SubjectSums", "compare"]

MIN_HISTORY = 15
"""Complete windows that a baseline needs."""
MAX_SILENT_SHARE = 0.05
"""Share of earlier windows that may be silent if silence is to be a finding."""
MAD_TO_SIGMA = 1.4826
"""Standard deviations of a normal distribution in a median absolute deviation."""
IN_WINDOW = WINDOW // BUCKET
COLUMNS = (HISTORY + 1) * IN_WINDOW
Sums = NDArray[np.int64]


class Anomaly(NamedTuple):
    """A finding, with the numbers that explain it."""

    router: str
    finding: str
    subject: str
    parent: str | None
    observed: float
    baseline: float
    spread: float
    deviation: float


@dataclass(frozen=True, slots=True)
class SubjectSums:
    """What a subject did in each ten seconds that begin at `buckets`, in microseconds."""

    metric: str
    subject: str
    buckets: Sums
    counts: Sums
    totals: Sums


class SubjectSeries:
    """Counts and totals of one subject, by ten seconds; the last is the newest."""

    def __init__(self) -> None:
        self.sums: Sums = np.zeros((2, COLUMNS), np.int64)

    def windows(self, windows: RouterWindows) -> tuple[Sums, Sums]:
        """Return counts and totals of the complete windows, the newest first."""
        by_window = self.sums.reshape(2, HISTORY + 1, IN_WINDOW).sum(axis=2)[:, ::-1]
        counts, totals = by_window[:, list(windows.complete)]
        return counts, totals


class Baselines:
    """The past of each messaging router, provider and router: of all but the large metrics."""

    def __init__(self) -> None:
        self._pasts: dict[str, _Past] = {}

    def unknown_since(self, windows: RouterWindows) -> int:
        """Move the past of a router on to `end`; return the first bucket that must be read."""
        past = self._pasts.get(windows.router)
        if past is None or not 0 <= (windows.end - past.end) // BUCKET < COLUMNS:
            past = self._pasts[windows.router] = _Past(windows.end)
        past.move(windows.end)
        past.forget_late(windows)
        unknown = np.flatnonzero(_in_complete(windows) & ~past.is_known)
        column = int(unknown[0]) if unknown.size else COLUMNS
        return windows.end - (COLUMNS - column) * BUCKET

    def add(self, windows: RouterWindows, rows: Iterable[SubjectSums]) -> None:
        """Add all sums from `unknown_since` on."""
        self._pasts[windows.router].add(windows, rows)

    def anomalies(self, windows: RouterWindows) -> Iterator[Anomaly]:
        past = self._pasts[windows.router]
        for rule in RULES:
            if rule.metric in LARGE_METRICS:
                continue
            for (metric, subject), series in past.series.items():
                if metric == rule.metric:
                    found = compare(rule, windows.router, subject, *series.windows(windows))
                    if found is not None:
                        yield found

    def newest(self, windows: RouterWindows, metric: str, subject: str) -> int:
        """Return the count of a subject in the newest window."""
        series = self._pasts[windows.router].series.get((metric, subject))
        return 0 if series is None else int(series.windows(windows)[0][0])


class _Past:
    """The sums of one router up to `end`."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.is_known = np.zeros(COLUMNS, np.bool_)
        self.series: dict[tuple[str, str], SubjectSeries] = {}
        self.ends: dict[int, int] = {}
        """The time of the last event of each run that was read, by boot."""

    def move(self, end: int) -> None:
        """Drop the oldest sums, for those up to a later end."""
        step, self.end = (end - self.end) // BUCKET, end
        if not step:
            return
        self.is_known = np.append(self.is_known[step:], np.zeros(step, np.bool_))
        for key, series in list(self.series.items()):
            series.sums[:, :-step] = series.sums[:, step:].copy()
            series.sums[:, -step:] = 0
            if not series.sums.any():
                del self.series[key]

    def forget_late(self, windows: RouterWindows) -> None:
        """Forget the sums since the earliest event that came after they were read."""
        for boot, (begin, until) in windows.runs.items():
            since = self.ends.get(boot, begin)
            if boot not in self.ends or until > since:
                column = COLUMNS - -(-(windows.end - since) // BUCKET)
                self.is_known[max(column, 0) :] = False
        self.ends = {boot: until for boot, (_, until) in windows.runs.items()}

    def add(self, windows: RouterWindows, rows: Iterable[SubjectSums]) -> None:
        for series in self.series.values():
            series.sums[:, ~self.is_known] = 0
        for row in rows:
            columns = COLUMNS - (windows.end - row.buckets) // BUCKET
            is_new = (columns >= 0) & (columns < COLUMNS)
            is_new[is_new] = ~self.is_known[columns[is_new]]
            if is_new.any():
                series = self.series.setdefault((row.metric, row.subject), SubjectSeries())
                series.sums[:, columns[is_new]] = row.counts[is_new], row.totals[is_new]
        self.is_known |= _in_complete(windows)


def _in_complete(windows: RouterWindows) -> NDArray[np.bool_]:
    """Return which buckets are in complete windows."""
    found = np.zeros((HISTORY + 1, IN_WINDOW), np.bool_)
    found[[HISTORY - number for number in windows.complete]] = True
    return found.reshape(COLUMNS)


def compare(
    rule: AnomalyRule,
    router: str,
    subject: str,
    counts: Sequence[int] | Sums,
    totals: Sequence[int] | Sums,
    parent: str | None = None,
) -> Anomaly | None:
    """Compare the newest of complete windows, which is the first, with the others."""
    if rule.is_ratio:
        if counts[0] < rule.samples:
            return None
        observed = float(totals[0] / counts[0])
    else:
        observed = float(counts[0])
    if observed != 0 if rule.is_silence else observed < rule.floor:
        return None
    pairs = zip(counts[1:], totals[1:], strict=True)
    if rule.is_ratio:
        past = sorted(float(total / count) for count, total in pairs if count >= rule.samples)
    else:
        past = sorted(float(count) for count, _ in pairs)
    if len(past) < MIN_HISTORY:
        return None
    if rule.is_silence and past.count(0.0) > MAX_SILENT_SHARE * len(past):
        return None
    baseline = past[len(past) // 2]
    spread = sorted(abs(value - baseline) for value in past)[len(past) // 2]
    distance = baseline - observed if rule.is_silence else observed - baseline
    deviation = distance / (MAD_TO_SIGMA * spread + rule.scale)
    if deviation < rule.least or (rule.is_silence and baseline < rule.floor):
        return None
    return Anomaly(router, rule.finding, subject, parent, observed, baseline, spread, deviation)
