"""The daily line, exact; active tokens over days, weeks and months; and the reconciliation."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from heliograph.pipeline.jobs import stats
from heliograph.pipeline.jobs.stats import DailyLine, Difference
from heliograph.pipeline.tables.tables import open_tables
from heliograph.pipeline.upkeep import backfill, expire
from heliograph.runtime.errors import StartError
from tests.pipeline.support import START, Scribe, pipeline, write_journal

DAY = 86_400.0
MONDAY = START.date()


def a_week() -> Scribe:
    """Something of everything on Monday; t1 again on Sunday, with t2."""
    ntf = Scribe()
    apns = {"provider": "apns_prod"}
    for token in ("t1", "t2"):
        ntf("token_registered", 0.0, token=token, **apns)
        ntf("token_verification_queued", 0.1, token=token, **apns)
        ntf.push("push_accepted", 0.2, token, mode="verification", through=0)
        ntf("token_confirmed", 0.3, token=token, **apns)
        ntf("token_active", 0.4, token=token, **apns)
    ntf("token_active", 0.5, token="t1", reason="repeated", **apns)
    null = {"provider": "apns_null"}
    for kind in ("token_registered", "token_verification_queued", "token_active", "token_replaced"):
        ntf(kind, 1.0, token="t3", **null)
    for mode in ("verification", "message", "periodic"):
        ntf.push("push_accepted", 1.0, "t3", mode=mode, through=0, **null)
    ntf("token_deleted", 1.05, token="t3", through=0, **null)
    ntf.push("push_rejected", 1.1, "t4", mode="verification", reason="BadDeviceToken", code=400)
    ntf.push("push_retried", 1.2, "t4", mode="verification", reason="x", status="later")
    ntf("token_replaced", 1.3, token="t2", **apns)
    ntf("subscription_created", 2.0, token="t1", subscription="s1", own_server=False)
    ntf("subscription_deleted", 2.1, token="t1", subscription="s0", through=0)
    ntf("token_deleted", 2.2, token="t0", through=0)
    ntf("token_deleted", 2.3, token="t9", through=0, reason="superseded")
    ntf.nmsg(1, 3.0)
    ntf.nmsg(2, 3.1)
    ntf("nmsg_unknown", 3.2, notification="n9", subscription="s9", own_server=False)
    ntf.push("push_retried", 4.0, reason="ServiceUnavailable", status="later", code=503)
    ntf.accepted([2], 2, 4.1)
    ntf.push("push_accepted", 4.2, mode="periodic", through=0)
    ntf.push("push_retried", 4.3, mode="periodic", reason="x", status="later")
    ntf.nmsg(3, 6 * DAY)
    ntf.nmsg(4, 6 * DAY + 1, token="t2", sub="s2")
    ntf.accepted([3], 3, 6 * DAY + 2)
    return ntf


WEEK = {"accepted": 2, "coalesced": 1, "pending": 1, "undeliverable": 1}
EXPECTED = [
    "2026-01-05,2,3,1,1,1,2,1,1,,,2,,,1,1,1,1,2,2,1,1",
    "2026-01-11,0,0,0,0,0,2,1,2,2,,2,3,,0,0,0,0,0,0,0,0",
]


def test_the_lines_of_a_week_also_after_the_events_are_gone(spark: Any, tmp_path: Path) -> None:
    journal = write_journal(tmp_path / "journal", a_week())
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, journal)
        made.ingester.ingest_batch()
        assert made.update_stats() == 2
        assert made.update_stats() == 0

        def lines() -> list[str]:
            counts = stats.merge_counts(made.read("counts"))
            last = MONDAY + timedelta(days=30)
            found = stats.daily_lines(counts, made.read("actives"), MONDAY, last)
            return [line.text for line in found]

        assert lines() == EXPECTED
        assert backfill(made, MONDAY) == 1
        assert lines() == EXPECTED
        after = START.timestamp() + 30 * DAY
        outcomes = made.account().outcomes
        assert expire(made, after, events_days=14, ledger_days=90) == 2
        assert made.read("events").count() == 0
        assert lines() == EXPECTED
        # One late event of a day whose others have expired.
        late = Scribe(boot=2000)
        late("client_connected", 1.0, count=1)
        write_journal(tmp_path / "journal", late)
        made.ingester.ingest_batch()
        with pytest.raises(StartError, match="the others have expired"):
            backfill(made, MONDAY)
        assert lines() == EXPECTED
        assert made.account().outcomes == outcomes == WEEK


def test_a_line_is_read_as_it_is_written() -> None:
    for text in EXPECTED:
        assert stats.parse_line(text).text == text
    with pytest.raises(ValueError, match="22 columns"):
        stats.parse_line("2026-01-05,1")
    with pytest.raises(ValueError, match="isoformat"):
        stats.parse_line(EXPECTED[0].replace("2026-01-05", "yesterday"))


def test_reconciliation_names_each_difference() -> None:
    ours = [DailyLine("2026-01-05", ntf_received=5, tkn_day=2), DailyLine("2026-01-06")]
    assert stats.reconcile(ours, ours) == []
    restarted = [
        DailyLine("2026-01-05", ntf_received=2, tkn_day=1),
        DailyLine("2026-01-05", ntf_received=3, tkn_day=2),
        DailyLine("2026-01-07", ntf_received=9),
    ]
    assert stats.reconcile(ours, restarted) == []
    wrong = [DailyLine("2026-01-05", ntf_received=4, tkn_day=2)]
    assert stats.reconcile(ours, wrong) == [Difference("2026-01-05", "ntf_received", 5, 4)]


def test_months_end_where_they_end(spark: Any) -> None:
    active = {("tokens", "month", date(2026, 2, 1)): 7}
    assert stats.active_on(active, "tokens", "month", date(2026, 2, 28)) == 7
    assert stats.active_on(active, "tokens", "month", date(2026, 2, 27)) is None
    assert stats.active_on(active, "tokens", "week", date(2026, 3, 1)) == 0


def test_sketches_are_exact_for_small_sets_and_near_for_large(spark: Any) -> None:
    def distinct(low: int, high: int) -> Any:
        ids = spark.range(low, high).selectExpr("sha2(cast(id as string), 256) as id")
        return ids.selectExpr(f"theta_sketch_agg(id, {stats.EXACT_BITS}) as sketch")

    small = distinct(0, 9000).unionByName(distinct(5000, 16_000))
    large = distinct(0, 60_000).unionByName(distinct(40_000, 100_000))
    for parts, number, error in ((small, 16_000, 0.0), (large, 100_000, 0.03)):
        merged = parts.selectExpr(
            f"theta_sketch_estimate(theta_union_agg(sketch, {stats.EXACT_BITS})) as n"
        ).collect()
        assert abs(merged[0]["n"] - number) <= error * number
