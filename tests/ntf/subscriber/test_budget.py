"""The budget for worthless events."""

from heliograph.ntf.subscriber.budget import (
    BURST_SECONDS,
    MAX_PAUSED_SECONDS,
    RATE,
    EventBudget,
)

BURST = int(RATE * BURST_SECONDS)


def test_a_burst_and_a_steady_rate_cost_nothing() -> None:
    budget = EventBudget(0.0)
    assert budget.spend(BURST, 0.0) == 0
    for second in range(1, 1000):
        assert budget.spend(int(RATE), float(second)) == 0
    assert not budget.is_exhausted


def test_beyond_the_budget_reading_is_paused_until_it_is_balanced() -> None:
    budget = EventBudget(0.0)
    pause = budget.spend(BURST + int(RATE), 0.0)
    assert pause == 1.0
    assert budget.spend(0, pause) == 0
    assert not budget.is_exhausted


def test_a_flood_exhausts_it() -> None:
    budget, now, events = EventBudget(0.0), 0.0, 0
    while not budget.is_exhausted:
        events += 500
        now += budget.spend(500, now)
    assert now <= MAX_PAUSED_SECONDS + 10
    assert events <= BURST + RATE * now + 500
