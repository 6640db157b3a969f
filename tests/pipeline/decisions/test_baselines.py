"""Baselines that are kept find what ones that read everything again find."""

import random
from typing import NamedTuple

import numpy as np
import pytest

from heliograph.pipeline.decisions.baselines import Anomaly, Baselines, SubjectSums
from heliograph.pipeline.decisions.windows import WINDOW, RouterWindows
from heliograph.pipeline.jobs.rates import BUCKET

ROUTER = "r" * 16
END = 10_000 * WINDOW
STEPS = 60


class Sum(NamedTuple):
    metric: str
    subject: str
    bucket: int
    number: int
    total: int


def by_subject(rows: list[Sum]) -> list[SubjectSums]:
    found: dict[tuple[str, str], list[Sum]] = {}
    for row in rows:
        found.setdefault(row[:2], []).append(row)
    return [
        SubjectSums(*key, *np.array([row[2:] for row in some]).transpose())
        for key, some in found.items()
    ]


def sums() -> list[Sum]:
    """Three hours and more of a provider that fails at last, and messaging routers."""
    draw, found = random.Random(1), []
    for number in range(1_100 + STEPS):
        at = END + (number - 1_100) * BUCKET
        failing = 12 if number > 1_130 else draw.randrange(2)
        found.append(Sum("provider", "apns", at, 20, failing))
        if number < 1_120:
            found.append(Sum("server", "silent", at, 20 + draw.randrange(3), 0))
        found.append(Sum("server", "well", at, 20 + draw.randrange(3), 0))
    return found


def look(
    baselines: Baselines, windows: RouterWindows, rows: list[Sum]
) -> tuple[int, list[Anomaly]]:
    """Return how many sums were read, and the anomalies."""
    since = baselines.unknown_since(windows)
    new = [row for row in rows if since <= row.bucket < windows.end]
    baselines.add(windows, by_subject(new))
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


BEGAN = END - 2_000 * BUCKET
BUSY = [Sum("server", "busy", at, 1_200, 0) for at in range(BEGAN, END + WINDOW, BUCKET)]
"""A messaging router of which only one process writes, always the same."""


@pytest.mark.parametrize("known_before", [True, False])
def test_what_a_process_wrote_late_is_no_flood(known_before: bool) -> None:
    """It was not waited for, or not known, so the windows were complete without its events."""
    whole, behind, end = tuple(range(180)), END - 120 * WINDOW + 7, END + WINDOW
    kept, runs = Baselines(), {5: (BEGAN, END + 1)}
    if known_before:
        runs[7] = (BEGAN, behind)
    came = [row for row in BUSY if row.bucket <= behind] if known_before else []
    look(kept, RouterWindows(ROUTER, END, whole, runs), came)
    later = RouterWindows(ROUTER, end, whole, {5: (BEGAN, end + 1), 7: (BEGAN, end)})
    assert look(kept, later, BUSY)[1] == look(Baselines(), later, BUSY)[1] == []


def test_only_what_is_new_is_read_while_all_processes_write() -> None:
    rows, kept = sums(), Baselines()
    for step in range(STEPS):
        end = END + step * BUCKET
        runs = {5: (0, end + 1), 7: (0, end + BUCKET + 3)}
        windows = RouterWindows(ROUTER, end, tuple(range(180)), runs)
        assert look(kept, windows, rows)[0] <= 3 or step == 0
