"""Baselines that are kept find what ones that read everything again find."""

import random

from heliograph.pipeline.decisions.baselines import Anomaly, Baselines, BucketSum
from heliograph.pipeline.decisions.windows import WINDOW, RouterWindows
from heliograph.pipeline.jobs.rates import BUCKET

ROUTER = "r" * 16
END = 10_000 * WINDOW
STEPS = 60


def sums() -> list[BucketSum]:
    """Three hours and more of a provider that fails at last, and messaging routers."""
    draw, found = random.Random(1), []
    for number in range(1_100 + STEPS):
        at = END + (number - 1_100) * BUCKET
        failing = 12 if number > 1_130 else draw.randrange(2)
        found.append(BucketSum("provider", "apns", at, 20, failing))
        if number < 1_120:
            found.append(BucketSum("server", "silent", at, 20 + draw.randrange(3), 0))
        found.append(BucketSum("server", "well", at, 20 + draw.randrange(3), 0))
    return found


def look(
    baselines: Baselines, windows: RouterWindows, rows: list[BucketSum]
) -> tuple[int, list[Anomaly]]:
    """Return how many sums were read, and the anomalies."""
    since = baselines.unknown_since(windows)
    new = [row for row in rows if since <= row.bucket < windows.end]
    baselines.add(windows, new)
    return len(new), list(baselines.anomalies(windows))


def test_only_what_is_new_is_read() -> None:
    rows, kept, findings = sums(), Baselines(), set()
    for step in range(STEPS):
        windows = RouterWindows(ROUTER, END + step * BUCKET, tuple(range(180)))
        number, found = look(kept, windows, rows)
        assert found == look(Baselines(), windows, rows)[1]
        assert number <= 3 or step == 0
        findings |= {(item.finding, item.subject) for item in found}
    assert findings == {("failing_provider", "apns"), ("silent_server", "silent")}


def test_a_window_that_becomes_complete_is_read_again() -> None:
    rows, kept = sums(), Baselines()
    late = [row for row in rows if not END - 5 * WINDOW <= row.bucket < END - 4 * WINDOW]
    whole = tuple(range(180))
    look(kept, RouterWindows(ROUTER, END, tuple(item for item in whole if item != 4)), late)
    later = RouterWindows(ROUTER, END + 50 * BUCKET, whole)
    assert look(kept, later, rows)[1] == look(Baselines(), later, rows)[1] != []


def test_a_clock_that_jumps_begins_a_new_past() -> None:
    rows, kept = sums(), Baselines()
    look(kept, RouterWindows(ROUTER, END + 50 * BUCKET, tuple(range(180))), rows)
    before = RouterWindows(ROUTER, END, tuple(range(180)))
    assert look(kept, before, rows) == look(Baselines(), before, rows)
