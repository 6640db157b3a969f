"""Budgets and alerts, each against a plain restatement in fractions."""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from heliograph.pipeline.objectives.budget import (
    ALERTS,
    MIN_COUNTED,
    WINDOWS,
    ObjectiveState,
    WindowCount,
    judge,
)
from heliograph.pipeline.objectives.objective import Objective
from tests.pipeline.objectives.test_objective import objectives

NINETY_NINE = Objective(990_000, 10)
counts = st.builds(WindowCount, st.integers(0, 3000), st.integers(0, 300))
windows = st.fixed_dictionaries(dict.fromkeys(WINDOWS, counts))
reasons = st.dictionaries(st.sampled_from(sorted(WINDOWS)), st.just("some events are missing"))


@given(objectives, windows, reasons)
def test_states(
    objective: Objective, found: dict[str, WindowCount], incomplete: dict[str, str]
) -> None:
    result = judge(objective, None, found, incomplete)
    good, bad = found["30d"]
    target = Fraction(objective.millionths, 1_000_000)
    if good + bad < MIN_COUNTED:
        assert result.state is ObjectiveState.NO_DATA
    elif Fraction(good, good + bad) < target:
        assert result.state is ObjectiveState.MISSED
    else:
        assert result.state is not ObjectiveState.MISSED
        assert (result.state is ObjectiveState.MET) == ("30d" not in incomplete)
    if result.budget_left is not None and result.state is not ObjectiveState.NO_DATA:
        assert (result.budget_left < 0) == (result.state is ObjectiveState.MISSED)


@given(objectives, windows)
def test_alerts_need_both_windows(objective: Objective, found: dict[str, WindowCount]) -> None:
    result = judge(objective, "fcm", found, {})
    for alert in ALERTS:
        rates = [result.burn[alert.long], result.burn[alert.short]]
        fires = found[alert.long].all >= MIN_COUNTED and all(
            rate is not None and rate > alert.rate for rate in rates
        )
        assert (alert.name in result.alerts) == fires


@given(windows)
def test_an_alert_fires_from_what_is_known(found: dict[str, WindowCount]) -> None:
    all_incomplete = dict.fromkeys(WINDOWS, "a router is silent")
    whole, part = (
        judge(NINETY_NINE, None, found, {}),
        judge(NINETY_NINE, None, found, all_incomplete),
    )
    assert whole.alerts == part.alerts
    assert part.state is not ObjectiveState.MET


@pytest.mark.parametrize(
    ("bad", "left", "state"),
    [
        (0, 1.0, ObjectiveState.MET),
        (5, 0.5, ObjectiveState.MET),
        (10, 0.0, ObjectiveState.MET),
        (11, -0.1, ObjectiveState.MISSED),
        (30, -2.0, ObjectiveState.MISSED),
    ],
)
def test_budget_of_a_thousand(bad: int, left: float, state: ObjectiveState) -> None:
    result = judge(NINETY_NINE, None, {"30d": WindowCount(1000 - bad, bad)}, {})
    assert result.budget_left == pytest.approx(left)
    assert (result.state, result.notifications) == (state, 1000)


def test_burn_rates_of_the_workbook() -> None:
    """An outage of everything burns a budget of 1% a hundred times as fast as allowed."""
    outage = WindowCount(0, 200)
    quiet = WindowCount(1000, 0)
    found = {**dict.fromkeys(WINDOWS, quiet), "5m": outage, "1h": outage}
    result = judge(NINETY_NINE, None, found, {})
    assert result.burn["5m"] == pytest.approx(100.0)
    assert result.alerts == ("fast",)
    over = judge(NINETY_NINE, None, {**found, "5m": quiet}, {})
    assert over.alerts == ()
    few = judge(NINETY_NINE, None, {"1h": WindowCount(0, 99), "5m": WindowCount(0, 99)}, {})
    assert few.alerts == ()
