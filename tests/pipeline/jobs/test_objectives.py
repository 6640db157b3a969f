"""Objectives from the ledger: which notifications count, and that closing changes nothing."""

from pathlib import Path
from typing import Any

from heliograph.pipeline import closing
from heliograph.pipeline.jobs.objectives import count_windows
from heliograph.pipeline.objectives.budget import ObjectiveState, WindowCount
from heliograph.pipeline.objectives.objective import LIMITS, Objective
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.tables.tables import open_tables
from heliograph.pipeline.views import closed_outcomes
from tests.pipeline.support import (
    START,
    Scribe,
    decided,
    pipeline,
    write_journal,
    write_segment,
)

DAY = 86_400.0
SOON, EVER = Objective(990_000, 10), Objective(999_000)
EPOCH = int(START.timestamp())


def world() -> Scribe:
    """One notification for each way to count, each of its own token."""
    ntf = Scribe()

    def one(number: int, seconds: float) -> str:
        ntf.nmsg(number, seconds, f"t{number}", f"s{number}")
        return f"t{number}"

    ntf.accepted([1], 1, 5.0, one(1, 0.0))
    ntf.accepted([2], 2, 15.0, one(2, 0.0))
    one(3, 0.0)  # pending for longer than 10 s: late, but not lost
    ntf.push("push_expired", 20.0, one(4, 0.0), through=4, reason="ttl")
    ntf("token_invalid", 1.0, token=one(5, 0.0), provider="fcm", through=5)
    ntf.nmsg(6, 0.0, "t6", "s6")
    ntf.nmsg(7, 0.1, "t6", "s6")
    ntf.accepted([7], 7, 1.0, "t6")  # 6 is coalesced, and its latency not known
    ntf("nmsg_received", 0.0, notification="lost", own_server=False)
    one(8, 995.0)  # pending, but not for long
    ntf("client_connected", 1000.0, count=1)
    return ntf


def counted(rows: Any, sums: Any, until: float) -> dict[Any, WindowCount]:
    found = count_windows(rows, sums, (SOON, EVER), int((EPOCH + until) * 1e6))
    return {
        (objective, provider, window): count
        for (objective, provider), windows in found.items()
        for window, count in windows.items()
    }


def no_sums(spark: Any) -> Any:
    columns = "hour timestamp, provider string, outcome string, notifications long"
    return spark.createDataFrame([], f"{columns}, within array<long>")


def test_what_counts(spark: Any) -> None:
    rows = decided(spark, world().events)
    found = counted(rows, no_sums(spark), 1000.0)
    # 1 and 7 in time; 2 late and 4 expired.
    assert found[SOON, "apns_prod", "30d"] == WindowCount(2, 2)
    # 3 has no provider yet; "lost" is unaccounted for.
    assert found[SOON, None, "30d"] == WindowCount(0, 2)
    assert found[EVER, "apns_prod", "30d"] == WindowCount(4, 1)
    assert found[EVER, None, "30d"] == WindowCount(0, 1)
    assert found[SOON, "apns_prod", "5m"] == WindowCount(0, 0)
    assert found[SOON, "apns_prod", "30m"] == WindowCount(2, 2)


def test_a_loss_that_a_gap_explains_is_none(spark: Any) -> None:
    ntf = world()
    for event in ntf.events[-4:]:
        event["seq"] += 20
        event["event_id"] = f"ntf-{ntf.boot}-{event['seq']}"
    found = counted(decided(spark, ntf.events), no_sums(spark), 1000.0)
    assert found[EVER, None, "30d"] == WindowCount(0, 0)


def test_tokens_that_test_routers_do_not_count(spark: Any) -> None:
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf.accepted([1], 1, 1.0)
    ntf.events[-1]["provider"] = "apns_null"
    assert counted(decided(spark, ntf.events), no_sums(spark), 10.0) == {}


def many(ntf: Scribe, count: int, seconds: float, latency: float) -> None:
    first = len(ntf.events) + 1
    for number in range(first, first + count):
        ntf.nmsg(number, seconds, f"t{number}", f"s{number}")
        ntf.accepted([number], number, seconds + latency, f"t{number}")


def ingested(made: Pipeline) -> Pipeline:
    while made.ingester.ingest_batch() is not None:
        pass
    made.update_stats()
    return made


def test_closing_changes_nothing(spark: Any, tmp_path: Path) -> None:
    ntf = Scribe(boot=EPOCH * 10**6)
    for day in range(4):
        many(ntf, 30 + day, day * DAY + 60.0, LIMITS[day] + 0.5)
    ntf("client_connected", 3.5 * DAY, count=1)
    journal = write_journal(tmp_path / "journal", ntf)
    with open_tables(tmp_path / "tables") as tables:
        made = ingested(pipeline(spark, tables, journal))
        before = made.account().objectives
        assert closing.close(made) > 0
        assert closed_outcomes(made, None).count() > 0
        assert made.account().objectives == before
        assert (
            closed_outcomes(made, None, "2026-01-06").count() < closed_outcomes(made, None).count()
        )
        # An event that comes late reopens a row: it counts once, and as it is now.
        late = Scribe(boot=ntf.boot + 1)
        late("agent_decrypted", 3.6 * DAY, notification=ntf.events[0]["notification"])
        write_segment(journal, f"ntf/{late.boot}-00000001", late.events)
        ingested(made)
        assert made.reopened() is not None
        assert made.account().objectives.results == before.results
    everywhere = before.results[0]
    assert (everywhere.provider, everywhere.notifications) == (None, 126)
    assert before.until == EPOCH + 3.5 * DAY


def test_an_objective_is_met_only_after_thirty_days(spark: Any, tmp_path: Path) -> None:
    states = []
    for days in (29, 31):
        ntf = Scribe(boot=EPOCH * 10**6)
        many(ntf, 101, days * DAY - 60.0, 1.0)
        ntf("client_connected", days * DAY, count=1)
        journal = write_journal(tmp_path / f"journal{days}", ntf)
        with open_tables(tmp_path / f"tables{days}") as tables:
            found = ingested(pipeline(spark, tables, journal)).account().objectives
        states.append({(r.provider, r.state) for r in found.results})
        assert ("30d" in found.incomplete) == (days == 29)
    incomplete, met = ObjectiveState.INCOMPLETE, ObjectiveState.MET
    assert states == [
        {(None, incomplete), ("apns_prod", incomplete)},
        {(None, met), ("apns_prod", met)},
    ]
