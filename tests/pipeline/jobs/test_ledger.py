"""Tiny journals with one story each, and the outcome that the ledger must find."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from heliograph.journal.heads import Head, write_head
from heliograph.pipeline.account import Verdict
from heliograph.pipeline.jobs import ledger
from heliograph.pipeline.jobs.outcomes import SECOND, OutcomeSettings, decide
from heliograph.pipeline.jobs.routers import router_facts
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.tables.tables import open_tables
from heliograph.pipeline.upkeep import expire
from heliograph.sim.fleet import Fleet, FleetSettings
from tests.pipeline.support import (
    START,
    Scribe,
    decided,
    frame,
    outcomes,
    pipeline,
    write_journal,
    write_segment,
)

DAY = 86_400.0
SMP: dict[str, Any] = {"router": "smp", "part": "smp"}


def accepted_and_coalesced() -> list[Scribe]:
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf.nmsg(2, 0.1)
    ntf.nmsg(3, 0.2, sub="s2")
    ntf.accepted([2, 3], 3, 1.0)
    ntf.nmsg(4, 2.0)
    ntf.accepted([4, 3], 4, 3.0)
    return [ntf]


def shown() -> list[Scribe]:
    ntf, phone = Scribe(), Scribe("phone", "device")
    ntf.nmsg(1, 0.0)
    ntf.accepted([1], 1, 1.0)
    phone.part = "agent"
    phone("agent_decrypted", 1.5, notification="n1")
    phone.part = "device"
    phone("device_shown", 2.0, notification="n1")
    return [ntf, phone]


def rejected_expired_deleted() -> list[Scribe]:
    ntf = Scribe()
    for number, token in enumerate(("t1", "t2", "t3", "t4"), 1):
        ntf.nmsg(number, 0.0, token, f"s{number}")
    ntf.push("push_rejected", 1.0, "t1", reason="Unregistered", code=410)
    ntf("token_invalid", 1.1, token="t1", provider="apns_prod", through=4)
    ntf.push("push_expired", 2.0, "t2", through=2, reason="ttl")
    ntf("token_deleted", 3.0, token="t3", through=4)
    ntf("subscription_deleted", 4.0, token="t4", subscription="s4", through=4)
    return [ntf]


def expired_then_carried() -> list[Scribe]:
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf.push("push_expired", 1.0, through=1, reason="ttl")
    ntf.nmsg(2, 2.0, sub="s2")
    ntf.accepted([2, 1], 2, 3.0)
    return [ntf]


def pending_and_other_modes() -> list[Scribe]:
    """What settles a verification, or another token, settles no message of this one."""
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf.push("push_accepted", 1.0, mode="verification", through=9)
    ntf.push("push_expired", 1.0, mode="periodic", through=9, reason="ttl")
    ntf.push("push_retried", 1.0, reason="ServiceUnavailable", status="later", code=503)
    ntf("subscription_deleted", 1.0, token="t1", subscription="s9", through=9)
    ntf("token_deleted", 2.0, token="t2", through=9)
    ntf.push("push_accepted", 2.0, "t3", through=9, notifications=[])
    return [ntf]


def only_at_smp() -> list[Scribe]:
    smp = Scribe(**SMP)
    for number in range(1, 5):
        smp("notification_stored", 0.0, notification=f"n{number}")
    smp("notification_removed", 1.0, notification="n2")
    smp("notification_expired", 1.0, notification="n3")
    smp("notification_delivered", 1.0, notification="n4")
    return [smp]


def delivered_and_refused() -> list[Scribe]:
    smp, ntf = Scribe(**SMP), Scribe()
    for number in (1, 2):
        smp("notification_stored", 0.0, notification=f"n{number}")
        smp("notification_delivered", 0.1, notification=f"n{number}")
        ntf("nmsg_received", 0.2, notification=f"n{number}", own_server=False)
    ntf("nmsg_unknown", 0.3, notification="n1", own_server=False)
    facts = {"token": "t", "subscription": "s", "status": "INVALID", "own_server": False}
    ntf("nmsg_dropped", 0.3, notification="n2", **facts)
    return [smp, ntf]


def killed() -> list[Scribe]:
    """n1 was settled in what was lost, n2 and n3 are still pending, n4's event is lost too."""
    ntf, again = Scribe(), Scribe(boot=2000)
    ntf.nmsg(1, 0.0, "t1")
    ntf.nmsg(2, 0.0, "t2")
    ntf.nmsg(3, 0.1, "t2")
    again("router_started", 10.0, through=4)
    recovered = {"attempt": 0, "reason": "recovered", "through": 4, "notifications": ["n3", "n4"]}
    again.push("push_pending", 10.0, "t2", **recovered)
    again("router_recovered", 10.1, count=1, through=4)
    return [ntf, again]


def killed_and_accepted() -> list[Scribe]:
    ntf, again = killed()
    again.accepted([3, 4], 4, 11.0, "t2")
    return [ntf, again]


def not_recovered_yet() -> list[Scribe]:
    ntf, again = Scribe(), Scribe(boot=2000)
    ntf.nmsg(1, 0.0)
    again("router_started", 10.0, through=1)
    return [ntf, again]


def killed_before_anything_was_said() -> list[Scribe]:
    smp, ntf, again = Scribe(**SMP), Scribe(), Scribe(boot=2000)
    smp("notification_stored", 0.0, notification="n1")
    smp("notification_delivered", 0.1, notification="n1")
    ntf("router_started", 0.0, through=0)
    again("router_started", 10.0, through=0)
    again("router_recovered", 10.1, count=0, through=0)
    return [smp, ntf, again]


def stored_event_lost() -> list[Scribe]:
    """Repeated by SMP after a kill that took both its storing and its push."""
    ntf, again = Scribe(), Scribe(boot=2000)
    ntf("router_started", 0.0, through=0)
    again("router_recovered", 10.0, count=0, through=5)
    again("nmsg_received", 11.0, notification="n1", own_server=False)
    facts = {"token": "t1", "subscription": "s1", "own_server": False}
    again("nmsg_repeated", 11.0, notification="n1", **facts)
    again("client_connected", 1000.0, count=1)
    return [ntf, again]


def lost_long_before_a_kill() -> list[Scribe]:
    smp, ntf, _ = killed_before_anything_was_said()
    ntf("client_connected", 5000.0, count=1)
    later = Scribe(boot=2000)
    later("router_recovered", 6000.0, count=0, through=0)
    return [smp, ntf, later]


def smp_killed() -> list[Scribe]:
    """n1 went in what was lost, n2 waits still."""
    smp, again = Scribe(**SMP), Scribe(**SMP, boot=2000)
    smp("notification_stored", 0.0, notification="n1")
    smp("notification_stored", 0.0, notification="n2")
    again("notification_stored", 10.0, notification="n2", reason="recovered")
    again("router_recovered", 10.1, count=1)
    return [smp, again]


def lost_between_routers() -> list[Scribe]:
    smp, ntf = Scribe(**SMP), Scribe()
    smp("notification_stored", 0.0, notification="n1")
    smp("notification_delivered", 0.1, notification="n1")
    ntf("client_connected", 1000.0, count=1)
    return [smp, ntf]


def received_and_forgotten() -> list[Scribe]:
    ntf = Scribe()
    ntf("nmsg_received", 0.0, notification="n1", own_server=False)
    ntf("client_connected", 1000.0, count=1)
    return [ntf]


def pending_push_forgotten() -> list[Scribe]:
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    ntf("client_connected", 4 * DAY, count=1)
    return [ntf]


def lost_while_another_was_down() -> list[Scribe]:
    """The kill of one router explains nothing that another had received."""
    down, again, ntf = Scribe("down"), Scribe("down", boot=2000), Scribe()
    down("router_started", 0.0, through=0)
    again("router_recovered", 10.0, count=0, through=0)
    ntf("nmsg_received", 0.2, notification="n1", own_server=False)
    ntf("client_connected", 1000.0, count=1)
    return [down, again, ntf]


def delivered_to_one_of_two_of_which_one_was_down() -> list[Scribe]:
    """Which of the two it was delivered to is not known."""
    smp = Scribe(**SMP)
    smp("notification_stored", 0.0, notification="n1")
    smp("notification_delivered", 0.2, notification="n1")
    down, again, ntf = lost_while_another_was_down()
    del ntf.events[0]
    ntf.events[0]["seq"], ntf.events[0]["event_id"] = 1, "ntf-1000-1"
    again("client_connected", 1000.0, count=1)
    return [smp, down, again, ntf]


def lost_long_after_another_died() -> list[Scribe]:
    """A router that never came back does not keep losses at others from being found."""
    dead, smp, ntf = Scribe("dead"), Scribe(**SMP), Scribe()
    dead("router_started", 0.0, through=0)
    smp("notification_stored", 60 * DAY, notification="n1")
    smp("notification_delivered", 60 * DAY, notification="n1")
    ntf("client_connected", 60 * DAY + 1000, count=1)
    return [dead, smp, ntf]


def lost_in_a_gap() -> list[Scribe]:
    """Events that are known to be missing may be those of n1, and not those of n2."""
    ntf = Scribe()
    ntf("nmsg_received", 0.0, notification="n1", own_server=False)
    ntf("client_connected", 1.0, count=1)
    ntf("client_connected", 2.0, count=1)
    for number in range(70):  # so that the gap and n2 are not in one block
        ntf("client_connected", 3.0 + number, count=1)
    ntf("nmsg_received", 5000.0, notification="n2", own_server=False)
    ntf("client_connected", 9000.0, count=1)
    del ntf.events[1]
    return [ntf]


STORIES: dict[Callable[[], list[Scribe]], dict[str, str]] = {
    accepted_and_coalesced: {
        "n1": "coalesced",
        "n2": "accepted",
        "n3": "accepted",
        "n4": "accepted",
    },
    shown: {"n1": "shown"},
    rejected_expired_deleted: {
        "n1": "rejected",
        "n2": "expired",
        "n3": "undeliverable",
        "n4": "undeliverable",
    },
    expired_then_carried: {"n1": "accepted", "n2": "accepted"},
    pending_and_other_modes: {"n1": "pending"},
    only_at_smp: {"n1": "waiting", "n2": "removed", "n3": "removed", "n4": "delivered"},
    delivered_and_refused: {"n1": "undeliverable", "n2": "undeliverable"},
    killed: {"n1": "accepted*", "n2": "pending", "n3": "pending", "n4": "pending"},
    killed_and_accepted: {"n1": "accepted*", "n2": "coalesced", "n3": "accepted", "n4": "accepted"},
    not_recovered_yet: {"n1": "pending"},
    killed_before_anything_was_said: {"n1": "accepted*"},
    stored_event_lost: {"n1": "accepted*"},
    lost_long_before_a_kill: {"n1": "unaccounted"},
    smp_killed: {"n1": "removed*", "n2": "waiting"},
    lost_between_routers: {"n1": "unaccounted"},
    received_and_forgotten: {"n1": "unaccounted"},
    pending_push_forgotten: {"n1": "unaccounted"},
    lost_while_another_was_down: {"n1": "unaccounted"},
    delivered_to_one_of_two_of_which_one_was_down: {"n1": "unaccounted?"},
    lost_long_after_another_died: {"n1": "unaccounted"},
    lost_in_a_gap: {"n1": "unaccounted?", "n2": "unaccounted"},
}


def test_every_story(spark: Any) -> None:
    wrong = {}
    for story, expected in STORIES.items():
        events = [event for scribe in story() for event in scribe.events]
        found = outcomes(decided(spark, events))
        if found != expected:
            wrong[story.__name__] = found
    assert not wrong


def test_ten_thousand_kills_are_one_small_table(spark: Any) -> None:
    """As a chain of conditions 350 overflowed the stack, and no account was made any more."""
    kills = 10_000
    boots = {}
    for number in range(kills):  # each runs for a second, and is down for one
        times = {"recovered_at": 2 * number * SECOND, "last_at": (2 * number + 1) * SECOND}
        boots[str(number)] = {**times, "recovered_through": 0}
    routers = router_facts({"ntf": {"part": "ntf", "boots": boots}})
    assert len(routers[0].kills) == kills - 1
    ntf = Scribe()
    ntf("nmsg_received", 0.0, notification="n1", own_server=False)
    ntf.events[0]["at"] = datetime.fromtimestamp(5_001.5, UTC)
    ntf("nmsg_received", 0.0, notification="n2", own_server=False)
    ntf.events[1]["at"] = datetime.fromtimestamp(5_002.5, UTC)
    events = frame(spark, ntf.events)
    settings = OutcomeSettings(grace=0.0)
    rows = decide(ledger.marks(events), ledger.settlements(events), routers, settings)
    assert outcomes(rows) == {"n1": "accepted*", "n2": "unaccounted"}


def test_what_is_only_pending_is_in_an_hour_and_is_archived(spark: Any, tmp_path: Path) -> None:
    """Known only from a push that was pending when a run began."""
    ntf = Scribe()
    facts: dict[str, Any] = {"attempt": 0, "reason": "recovered", "through": 4}
    ntf.push("push_pending", 10.0, notifications=["n9"], **facts)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, write_journal(tmp_path / "journal", ntf))
        made.ingester.ingest_batch()
        [hour] = made.account().hours
        assert (hour.at, hour.outcomes) == (int(START.timestamp()), {"pending": 1})
        made.update_stats()
        expire(made, START.timestamp() + 100 * DAY, events_days=14, ledger_days=90)
        assert made.ledger().count() == 0
        [row] = made.read("outcomes").collect()
        assert (row["outcome"], row["notifications"]) == ("pending", 1)


def test_a_verdict_says_what_is_missing(spark: Any, tmp_path: Path) -> None:
    ntf = Scribe()
    ntf("nmsg_received", 0.0, notification="n1", own_server=False)
    for number in range(30):
        ntf("client_connected", 1.0 + number, count=1)
    ntf("client_connected", 1000.0, count=1)
    kept, cut = [*ntf.events[:5], *ntf.events[25:]], ntf.events[5:25]
    journal = tmp_path / "journal"
    write_segment(journal, "ntf/1000-00000001", kept)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingester.ingest_batch()
        account = made.account()
        assert (account.verdict, account.missing_events) == (Verdict.GAPS, 20)
        assert (account.outcomes, account.explained) == ({"unaccounted": 1}, 1)
        [gap] = account.gaps
        assert (gap.router, gap.first_seq, gap.last_seq) == ("ntf", 6, 25)
        write_segment(journal, "ntf/1000-00000002", cut)
        made.ingester.ingest_batch()
        account = made.account()
        assert (account.verdict, account.gaps) == (Verdict.MISSING, ())


def test_an_idle_router_never_received_it(spark: Any, tmp_path: Path) -> None:
    """Delivered to a router that runs and journals nothing: its head tells that it is lost."""
    smp, ntf = Scribe(**SMP), Scribe()
    ntf("router_started", 0.0, through=0)
    smp("notification_stored", 1.0, notification="n1")
    smp("notification_delivered", 2.0, notification="n1")
    journal = write_journal(tmp_path / "journal", smp, ntf)
    start = START.timestamp()
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingester.ingest_batch()
        write_head(journal, Head("ntf", ntf.boot, "ntf", 1, 1, int(start * 1e6)))
        account = made.account(start + 60)
        assert (account.verdict, account.outcomes) == (Verdict.COMPLETE, {"delivered": 1})
        account = made.account(start + 1000)
        assert (account.verdict, account.until) == (Verdict.LAGGING, int(start * 1e6))
        assert [lag.what for lag in account.lags] == ["ntf (ntf)"]
        write_head(journal, Head("ntf", ntf.boot, "ntf", 1, 1, int((start + 1000) * 1e6)))
        account = made.account(start + 1000)
        assert (account.verdict, account.outcomes) == (Verdict.MISSING, {"unaccounted": 1})


def test_delivered_to_nobody_that_is_known(spark: Any, tmp_path: Path) -> None:
    smp = Scribe(**SMP)
    smp("notification_stored", 1.0, notification="n1")
    smp("notification_delivered", 2.0, notification="n1")
    journal = write_journal(tmp_path / "journal", smp)
    empty = tmp_path / "ntf"
    empty.mkdir()
    with open_tables(tmp_path / "tables") as tables:
        settings = RunSettings((str(journal), str(empty)))
        made = Pipeline(spark, tables, settings)
        made.ingester.ingest_batch()
        account = made.account()
        assert account.verdict is Verdict.LAGGING
        assert [lag.what for lag in account.lags] == [str(empty), "the notification routers"]


def test_milestones_and_latencies(spark: Any, tmp_path: Path) -> None:
    smp, (ntf, phone) = Scribe(**SMP), shown()
    smp("notification_stored", -0.25, notification="n1")
    smp("notification_delivered", -0.125, notification="n1")
    journal = write_journal(tmp_path / "journal", smp, ntf, phone)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingester.ingest_batch()
        row = made.ledger().collect()[0].asDict()
    start = int(START.timestamp() * 1e6)
    assert {name: row[name] - start for name in row if name.endswith("_at")} == {
        "smp_stored_at": -250_000,
        "smp_delivered_at": -125_000,
        "received_at": 0,
        "stored_at": 1_000,
        "accepted_at": 1_000_000,
        "decrypted_at": 1_500_000,
        "shown_at": 2_000_000,
        "first_at": -250_000,
    }
    assert {name: row[name] for name in row if name.endswith("_us")} == {
        "smp_us": 125_000,
        "wire_us": 125_000,
        "store_us": 1_000,
        "push_us": 999_000,
        "device_us": 1_000_000,
        "total_us": 1_250_000,
    }


def test_what_is_unaccounted_for_is_said_loudly(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = write_journal(tmp_path / "journal", *pending_push_forgotten())
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingester.ingest_batch()
        account = made.account()
        assert account.outcomes == {"unaccounted": 1}
        assert not account.is_complete
        assert account.unaccounted[0]["notification"] == "n1"
        patient = RunSettings((str(journal),), outcomes=OutcomeSettings(push_ttl=5 * DAY))
        assert Pipeline(spark, tables, patient).account().is_complete
    assert "1 notifications are unaccounted for" in caplog.text
    assert "unaccounted: n1: received_at 2026-01-05 00:00:00 UTC" in caplog.text


def counted_by_all(made: Pipeline) -> set[int]:
    """Events as Spark, Delta's own reader and DuckDB count them."""
    events = DeltaTable(f"{made.tables.storage.delta_url}/events").to_pyarrow_dataset()
    [[by_duckdb]] = duckdb.sql("SELECT count(DISTINCT event_id) FROM events").fetchall()
    return {made.read("events").count(), events.to_table().num_rows, by_duckdb}


def test_a_fleet_is_accounted_for_to_the_last(spark: Any, tmp_path: Path) -> None:
    fleet = Fleet(FleetSettings(notifications=3000, tokens=60, seed=5))
    fleet.write(tmp_path / "journal", rows_per_segment=2000)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, tmp_path / "journal")
        result = made.ingester.ingest_batch()
        assert result is not None
        assert result.events == fleet.events
        assert counted_by_all(made) == {fleet.events}
        account = made.account()
    assert account.outcomes == fleet.outcomes
    assert account.is_complete
