"""Best hours: who has one, which it is, and that no more are moved than the cap allows."""

from collections import Counter
from pathlib import Path
from typing import Any

from heliograph.actions.contract import ActionKind
from heliograph.pipeline.decisions import best_hours
from heliograph.pipeline.decisions.deciding import Decisions, DecisionSettings
from heliograph.pipeline.planning.phases import distance
from heliograph.pipeline.tables.tables import open_tables
from tests.pipeline.support import START, Scribe, frame, pipeline, write_journal

HOUR, DAY = 3600.0, 86_400.0
ROUTER = "0123456789abcdef"


def woken(ntf: Scribe, token: str, hour: float, every: float = DAY, times: int = 5) -> None:
    for number in range(times):
        ntf.push("push_accepted", number * every + hour * HOUR, token, mode="periodic")


def seen(ntf: Scribe, token: str, *hours: float) -> None:
    for day, hour in enumerate(hours):
        ntf("owner_seen", day * DAY + hour * HOUR, token=token, provider="fcm")


def world(tokens: int = 1) -> Scribe:
    ntf = Scribe(ROUTER, boot=int(START.timestamp()) * 10**6)
    for number in range(tokens):
        woken(ntf, f"morning{number}", 3)
        seen(ntf, f"morning{number}", 19.5, 20.2, 20.8, 7)
    return ntf


def test_habits(spark: Any) -> None:
    ntf = world()
    woken(ntf, "unknown", 5)
    seen(ntf, "unknown", 9, 9)
    woken(ntf, "often", 5, every=HOUR)
    seen(ntf, "often", 9, 9, 9)
    woken(ntf, "new", 5, times=2)
    woken(ntf, "midnight", 12)
    seen(ntf, "midnight", 23.5, 0.1, 23.9, 0.2, 0.3)
    rows = best_hours.habits(frame(spark, ntf.events)).collect()
    assert {row["token"]: (row["woken"], row["best"]) for row in rows} == {
        "morning0": (3, 20),
        "unknown": (5, None),
        "midnight": (12, 0),
    }


def test_decisions_are_flat_and_capped(spark: Any, tmp_path: Path) -> None:
    ntf = world(48)
    ntf.events.sort(key=lambda event: event["at"])
    for number, event in enumerate(ntf.events, 1):
        event["seq"], event["event_id"] = number, f"{ROUTER}-{ntf.boot}-{number}"
    ntf("router_stopped", 6 * DAY)
    journal = write_journal(tmp_path / "journal", ntf)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        while made.ingester.ingest_batch() is not None:
            pass
        all_of_them = best_hours.decide(made, DecisionSettings(max_percent=100.0), 0.0)
        capped = best_hours.decide(made, DecisionSettings(max_percent=25.0), 0.0)
    assert all_of_them.stopped == []
    assert len(capped.decisions) == 12
    assert {item.kind for item in capped.decisions} == {ActionKind.MOVE_WAKEUP}
    hours = Counter(int(str(item.evidence["phase"])) // 3600 for item in all_of_them.decisions)
    # 48 wake-ups are two an hour; three fit. A few get an hour near the one that they had.
    assert max(hours.values()) == 3
    assert hours[20] == 3
    assert len(all_of_them.decisions) >= 36
    for found in (all_of_them, capped):
        assert len({item.subject for item in found.decisions}) == len(found.decisions)
        assert {item.evidence["best"] for item in found.decisions} == {20}
        phases = [item.evidence["phase"] for item in found.decisions]
        assert len({*phases}) == len(phases)
    # The furthest first: twelve hours away from the hour at which all are woken.
    assert moved_by(capped) == moved_by(all_of_them)[-12:]


def moved_by(result: Decisions) -> list[int]:
    """Return by how many hours wake-ups are moved that were at three."""
    hours = (int(str(item.evidence["phase"])) // 3600 for item in result.decisions)
    return sorted(distance(3, hour) for hour in hours)
