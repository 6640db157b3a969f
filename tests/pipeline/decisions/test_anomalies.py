"""Rules on small frames: each finding, its floor, its own past, and what explains what."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from heliograph.actions.contract import EVERYTHING, ActionKind
from heliograph.pipeline.decisions import anomalies
from heliograph.pipeline.decisions.anomalies import (
    VALID_FOR,
    _decide_router,
    _pause_all,
    find,
)
from heliograph.pipeline.decisions.baselines import MIN_HISTORY, Anomaly, Baselines
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    RepairDecision,
    sign_all,
    without_current,
)
from heliograph.pipeline.decisions.rules import RULES
from heliograph.pipeline.decisions.windows import WINDOW, RouterWindows
from heliograph.pipeline.jobs.rates import BUCKET
from heliograph.pipeline.spark.local import local
from heliograph.pipeline.tables.schemas import SCHEMAS
from tests.actions.support import SIGNER

END = 1_000 * WINDOW
HISTORY = 30
ROUTER = "r" * 16
WINDOWS = RouterWindows(ROUTER, END, tuple(range(HISTORY + 1)))
Value = int | tuple[int, int]
"""A count, or count and total."""


def rows_of(
    metric: str, subject: str, now: Value | None, past: Iterable[Value], parent: str | None = None
) -> list[tuple[Any, ...]]:
    """The newest window, and those before it, newest first."""
    found = []
    for number, value in enumerate([now, *past]):
        if value is None:
            continue
        count, total = value if isinstance(value, tuple) else (value, 0)
        at = END - number * WINDOW - BUCKET
        found.append((at, ROUTER, metric, subject, parent, count, total))
    return found


def steady(value: Value) -> list[Value]:
    return [value] * HISTORY


def table(spark: Any, *subjects: list[tuple[Any, ...]]) -> Any:
    return local(spark, [row for rows in subjects for row in rows], SCHEMAS["rates"])


def found(spark: Any, *subjects: list[tuple[Any, ...]]) -> dict[tuple[str, str], Anomaly]:
    rows = find(table(spark, *subjects), [WINDOWS], Baselines(), Decisions())
    return {(row.finding, row.subject): row for row in rows}


def test_a_flood_is_measured_by_what_is_usual_for_the_token(spark: Any) -> None:
    noisy = [200 + 40 * (number % 5) for number in range(HISTORY)]
    rows = found(
        spark,
        rows_of("token", "quiet, then flooded", 400, [1, 0, 2]),
        rows_of("token", "new, and flooded", 300, []),
        rows_of("token", "below the floor", 299, []),
        rows_of("token", "always busy", 420, noisy),
        rows_of("token", "busy, then flooded", 5_000, noisy),
        rows_of("token", "was flooded before", 10, steady(500)),
    )
    assert {subject for _, subject in rows} == {
        "quiet, then flooded",
        "new, and flooded",
        "busy, then flooded",
    }
    quiet = rows["token_flood", "quiet, then flooded"]
    assert (quiet.observed, quiet.baseline, quiet.spread) == (400.0, 0.0, 0.0)
    assert quiet.deviation == pytest.approx(400 / 30)
    busy = rows["token_flood", "busy, then flooded"]
    assert (busy.baseline, busy.spread) == (280.0, 40.0)


def test_silence_and_slowness_of_a_messaging_router(spark: Any) -> None:
    bursty: list[Value] = [400 if number % 4 == 0 else 0 for number in range(HISTORY)]
    rows = found(
        spark,
        rows_of("server", "silent", None, steady(100)),
        rows_of("server", "silent, recorded so", 0, steady(100)),
        rows_of("server", "quiet", None, steady(19)),
        rows_of("server", "comes in bursts", None, bursty),
        rows_of("server", "comes in batches", None, [100, 100, 0] * (HISTORY // 3)),
        rows_of("server", "was silent once", None, [*steady(100)[:-1], 0]),
        rows_of("server", "as usual", 90, steady(100)),
        rows_of("server_delay", "slow", (1, 1_500_000), steady((1, 20_000))),
        rows_of("server_delay", "fast enough", (1, 900_000), steady((1, 20_000))),
        rows_of("server_delay", "always slow", (1, 1_500_000), steady((1, 1_400_000))),
    )
    assert rows.keys() == {
        ("silent_server", "silent"),
        ("silent_server", "silent, recorded so"),
        ("silent_server", "was silent once"),
        ("slow_server", "slow"),
    }


def test_providers_and_verifications(spark: Any) -> None:
    rows = found(
        spark,
        rows_of("provider", "fails", (100, 40), steady((50, 1))),
        rows_of("provider", "too few to know", (19, 19), steady((50, 1))),
        rows_of("provider", "always fails", (100, 40), steady((50, 20))),
        rows_of("provider", "hardly known", (100, 40), steady((50, 1))[: MIN_HISTORY - 1]),
        rows_of("provider_delay", "slow", (50, 50 * 3_000_000), steady((50, 50 * 80_000))),
        rows_of("verification", "fakes", (30, 25), steady((30, 1))),
    )
    assert rows.keys() == {
        ("failing_provider", "fails"),
        ("slow_provider", "slow"),
        ("verification_failures", "fakes"),
    }
    assert rows["failing_provider", "fails"].observed == 0.4


def decided(spark: Any, *subjects: list[tuple[Any, ...]]) -> Decisions:
    result = Decisions()
    baselines = Baselines()
    rows = find(table(spark, *subjects), [WINDOWS], baselines, result)
    populations = {(ROUTER, rule.metric): 1_000 for rule in RULES}
    _decide_router(WINDOWS, rows, populations, DecisionSettings(), result)
    _pause_all(baselines.newest(WINDOWS, "verified", ""), WINDOWS, result)
    return result


def keys(decisions: Iterable[RepairDecision]) -> set[tuple[str, str]]:
    return {(item.kind.value, item.subject) for item in decisions}


def test_the_narrowest_flood_is_throttled(spark: Any) -> None:
    made = decided(
        spark,
        rows_of("token", "by one", 1_000, []),
        rows_of("subscription", "one", 900, [], parent="by one"),
        rows_of("token", "by two", 1_000, []),
        rows_of("subscription", "two a", 500, [], parent="by two"),
        rows_of("subscription", "two b", 500, [], parent="by two"),
        rows_of("token", "by many", 1_000, []),
        rows_of("subscription", "of many", 299, [], parent="by many"),
        rows_of("server", "explained by them", 8_000, steady(100)),
        rows_of("server", "flooded", 20_000, steady(6_000)),
    )
    assert keys(made.decisions) == {
        ("throttle_subscription", "one"),
        ("throttle_token", "by two"),
        ("throttle_token", "by many"),
        ("throttle_server", "flooded"),
    }


def test_waves_of_registrations(spark: Any) -> None:
    wave = rows_of("registered", "", 900, steady(5))
    good = decided(spark, wave, rows_of("verified", "", 800, steady(5)))
    assert [(item.kind, item.subject) for item in good.decisions] == [
        (ActionKind.ALERT, EVERYTHING)
    ]
    fake = decided(spark, wave, rows_of("verified", "", 20, steady(5)))
    assert keys(fake.decisions) == {("pause_registrations", EVERYTHING)}
    assert fake.decisions[0].evidence["verified"] == 20
    source = decided(spark, rows_of("source", "net", 400, []))
    assert keys(source.decisions) == {("pause_registrations", "net")}


def test_too_many_of_a_kind_are_not_decided_on(spark: Any) -> None:
    floods = [rows_of("token", f"t{number}", 900, []) for number in range(60)]
    made = decided(spark, *floods)
    assert made.decisions == []
    assert "60 times throttle_token is more than 50" in made.stopped[0]


def test_a_crowd_of_busy_subjects_is_not_collected(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anomalies, "MAX_BUSY", 3)
    collected: list[int] = []
    new_sums = anomalies._new_sums

    def counted(*args: Any) -> Any:
        collected.append(new_sums(*args).count())
        return new_sums(*args)

    monkeypatch.setattr(anomalies, "_new_sums", counted)
    crowd = [rows_of("token", f"t{number}", 900 + number, []) for number in range(20)]
    server = rows_of("server", "flooded", 20_000, steady(100))
    made = decided(spark, *crowd, server)
    assert collected == [4 + 1]
    assert keys(made.decisions) == {("throttle_server", "flooded")}
    assert [line for line in made.stopped if "more than 3 subjects of the metric token" in line]
    few = decided(spark, *crowd[:3])
    assert keys(few.decisions) == {("throttle_token", f"t{number}") for number in range(3)}


def test_there_is_a_row_for_each_messaging_router_however_long_its_past(spark: Any) -> None:
    rows = [rows_of("server", f"s{number}", 100, steady(100)) for number in range(3)]
    since = {ROUTER: Baselines().unknown_since(WINDOWS)}
    found = anomalies._new_sums(table(spark, *rows), [WINDOWS], since).collect()
    assert [len(row["sums"]) for row in found] == [HISTORY + 1] * 3


def test_a_flood_that_goes_on_is_one_action_until_shortly_before_it_ends() -> None:
    now = 1_800_000_000.0
    evidence: Mapping[str, Any] = {"finding": "token_flood", "observed": 900.0}
    flood = RepairDecision(
        ROUTER, ActionKind.THROTTLE_TOKEN, "a" * 32, evidence, "flood/1", VALID_FOR
    )
    [action] = sign_all([flood], SIGNER, DecisionSettings(), now)
    assert action.valid_until == (now + VALID_FOR) * 1e6
    rows: list[dict[str, object]] = [
        {
            "router": action.router,
            "kind": action.kind.value,
            "subject": action.subject,
            "evidence": action.evidence,
            "valid_until": datetime.fromtimestamp(action.valid_until / 1e6, UTC),
        },
        {"router": None, "evidence": "?", "valid_until": datetime.now(UTC)},
    ]
    grown = RepairDecision(
        ROUTER, flood.kind, flood.subject, {**evidence, "observed": 950.0}, "flood/1", VALID_FOR
    )
    assert without_current([grown], rows, now + 60) == []
    assert without_current([grown], rows, now + VALID_FOR * 0.95) == [grown]
    other = RepairDecision(ROUTER, flood.kind, "b" * 32, evidence, "flood/1", VALID_FOR)
    assert without_current([other], rows, now) == [other]
