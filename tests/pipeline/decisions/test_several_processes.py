"""A router of several processes, one of which is behind: its messaging routers are not silent."""

from pathlib import Path
from typing import Any

from heliograph.journal.heads import Head, write_head
from heliograph.pipeline.decisions import anomalies
from heliograph.pipeline.decisions.deciding import Decisions, DecisionSettings
from heliograph.pipeline.tables.tables import Tables
from tests.pipeline.support import START, Scribe, pipeline, write_segment

FAST, SLOW = "aa" * 16, "bb" * 16
"""Messaging routers: each is subscribed to by one of two processes."""
USUAL = 30
"""NMSG in ten seconds."""
SETTINGS = DecisionSettings(max_percent=100.0)
PAST, BEHIND, SILENT = 1_800, 2_000, 2_100
"""Seconds at which one process falls behind, has caught up, and its router has been silent."""


class Process:
    """One of the router's processes, and how far its journal has arrived."""

    def __init__(self, journal: Path, boot: int, server: str) -> None:
        self._scribe, self._journal, self._server = Scribe(boot=boot), journal, server
        self._segments = self._sealed = 0
        self._scribe("router_started", 0.0, through=0)

    def count(self, begin: int, end: int, nmsg: int = USUAL) -> None:
        for at in range(begin, end, 10):
            facts = {"server": self._server, "own_server": False, "count": nmsg}
            self._scribe("smp_counted", at + 9.9, **facts)

    def arrive(self, until: int) -> None:
        """Write what was recorded to the journal, and the head of a run that goes on."""
        self._segments += 1
        scribe, number = self._scribe, self._segments
        name = f"{scribe.router}/{scribe.boot}-{number:08d}"
        write_segment(self._journal, name, scribe.events[self._sealed :])
        self._sealed = len(scribe.events)
        at = int((START.timestamp() + until) * 1e6)
        write_head(self._journal, Head("ntf", scribe.boot, "ntf", number, self._sealed, at))


def test_what_has_not_arrived_is_not_silence(spark: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    fast, slow = Process(journal, 1000, FAST), Process(journal, 2000, SLOW)
    made = pipeline(spark, Tables(tmp_path / "tables"), journal)

    def decide() -> Decisions:
        while made.ingester.ingest_batch() is not None:
            pass
        made.update_rates()
        return anomalies.decide(made, SETTINGS, START.timestamp())

    for process in (fast, slow):
        process.count(0, PAST)
        process.arrive(PAST)
    assert decide() == Decisions()
    fast.count(PAST, BEHIND)
    fast.arrive(BEHIND)
    behind = decide()
    assert (behind.decisions, behind.found) == ([], [])
    assert behind.stopped == ["ntf: not all events of the newest window are known"]
    slow.count(PAST, BEHIND)
    slow.arrive(BEHIND)
    assert decide() == Decisions()
    # It is idle, and says so; what nobody counts did not happen.
    fast.count(BEHIND, SILENT)
    fast.arrive(SILENT)
    slow.count(BEHIND, BEHIND + 10, 0)
    slow.arrive(SILENT)
    silent = decide()
    assert silent.stopped == []
    assert [(item.evidence["finding"], item.subject) for item in silent.decisions] == [
        ("silent_server", SLOW)
    ]
