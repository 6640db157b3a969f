from pathlib import Path
from typing import Any

from heliograph.pipeline.jobs import rates
from heliograph.pipeline.jobs.rates import BUCKET, merge_rates
from heliograph.pipeline.tables.tables import open_tables
from heliograph.pipeline.upkeep import expire
from tests.pipeline.support import START, Scribe, frame, pipeline, write_journal, write_segment

FIRST = int(START.timestamp()) * 1_000_000
FOREIGN: dict[str, Any] = {"own_server": False}


def rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted(
        ((row["bucket"] - FIRST) // BUCKET, *row[2:4], row["count"], row["total"])
        for row in found.collect()
    )


def events() -> Scribe:
    scribe = Scribe()
    scribe.nmsg(1, 1.0)
    scribe.nmsg(2, 9.9, sub="s2")
    scribe.nmsg(3, 10.0)
    scribe("smp_counted", 10.0, server="a", count=3, delay=400, **FOREIGN)
    scribe("smp_counted", 20.0, server="a", count=0, **FOREIGN)
    scribe("pushes_timed", 10.0, provider="apns_prod", count=2, delay=70_000)
    scribe.push("push_accepted", 1.0)
    scribe.push("push_retried", 2.0, reason="x", status="later")
    scribe.push("push_attempted", 2.0)
    scribe.push("push_rejected", 3.0, mode="verification", reason="x")
    scribe.push("push_accepted", 3.0, mode="verification")
    scribe("token_registered", 4.0, token="t1", provider="apns_prod")
    scribe("token_active", 5.0, token="t1", provider="apns_prod")
    scribe("token_active", 6.0, token="t1", provider="apns_prod", reason="repeated")
    scribe("registrations_counted", 10.0, source="net", count=25)
    return scribe


EXPECTED = [
    (0, "provider", "apns_prod", 2, 1),
    (0, "registered", "", 1, 0),
    (0, "subscription", "s1", 1, 0),
    (0, "subscription", "s2", 1, 0),
    (0, "token", "t1", 2, 0),
    (0, "verification", "apns_prod", 2, 1),
    (0, "verified", "", 1, 0),
    (1, "provider_delay", "apns_prod", 2, 140_000),
    (1, "server", "a", 3, 0),
    (1, "server_delay", "a", 1, 400),
    (1, "source", "net", 25, 0),
    (1, "subscription", "s1", 1, 0),
    (1, "token", "t1", 1, 0),
    (2, "server", "a", 0, 0),
]


def test_events_are_counted_by_ten_seconds(spark: Any) -> None:
    found = rates.rates(frame(spark, events().events))
    assert rows(found) == EXPECTED
    parents = {
        row["subject"]: row["parent"] for row in found.where("metric = 'subscription'").collect()
    }
    assert parents == {"s1": "t1", "s2": "t1"}


def test_parts_are_summed_and_old_events_are_left_out(spark: Any) -> None:
    every = events().events
    halves = [rates.rates(frame(spark, some)) for some in (every[::2], every[1::2])]
    assert rows(merge_rates(halves[0].unionByName(halves[1]))) == EXPECTED
    late = rates.rates(frame(spark, every), {"other": 0, "ntf": FIRST + BUCKET})
    assert rows(late) == [row for row in EXPECTED if row[0] >= 1]
    for nothing in ({}, {"other": 0}):
        assert rows(rates.rates(frame(spark, every), nothing)) == []


def test_rates_are_kept_by_the_time_of_their_own_router(spark: Any, tmp_path: Path) -> None:
    """One is a day behind, and a phone's clock is a day ahead."""
    day, behind, ahead, phone = 86_400.0, Scribe("behind"), Scribe(), Scribe("phone", "device")
    behind.nmsg(1, 10.0)
    ahead.nmsg(2, day - 5 * 3600)
    ahead.nmsg(3, day - 3 * 3600)
    phone("client_connected", 2 * day, count=1)
    journal = write_journal(tmp_path / "journal", behind, ahead, phone)
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingester.ingest_batch()
        made.update_rates()
        ahead.nmsg(4, day)
        write_segment(journal, f"ntf/{ahead.boot}-00000002", ahead.events[4:])
        made.ingester.ingest_batch()
        made.update_rates()
        expire(made, START.timestamp() + 3 * day, events_days=14, ledger_days=90)
        kept = made.rates().where("metric = 'token'").collect()
    found = sorted((row["router"], (row["bucket"] - FIRST) // 1_000_000) for row in kept)
    assert found == [("behind", 10), ("ntf", 75_600), ("ntf", 86_400)]
