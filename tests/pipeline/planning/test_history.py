from heliograph.pipeline.planning.history import DAY, HourSums, complete_days, habits_of

HOUR = 3600


def hours(days: int, tokens: int = 240) -> list[HourSums]:
    """Each day ten times as many notifications at noon as in the other hours."""
    return [
        HourSums(
            day * DAY + hour * HOUR,
            tokens_added=tokens if not hour else 0,
            subscriptions_added=3 * tokens if not hour else 0,
            notifications=1000 if hour == 12 else 100,
            pushes=500 if hour == 12 else 50,
            wake_ups=72,
            events=8000,
        )
        for day in range(days)
        for hour in range(24)
    ]


def test_only_complete_days_count() -> None:
    days = complete_days(hours(4), 3 * DAY + 100, {2})
    assert [day.day for day in days] == [1]
    assert (days[0].tokens, days[0].subscriptions) == (480, 1440)
    assert (days[0].notifications, days[0].busiest, days[0].events) == (3300, 1000, 24 * 8000)
    assert days[0].peak == 24 * 1000 / 3300
    assert complete_days([], 5 * DAY, ()) == []


def test_a_day_without_events_is_a_day() -> None:
    quiet = [HourSums(0, tokens_added=5), HourSums(2 * DAY, tokens_removed=9)]
    assert [(day.day, day.tokens, day.peak) for day in complete_days(quiet, 4 * DAY, ())] == [
        (1, 5, 1.0),
        (2, 0, 1.0),
        (3, 0, 1.0),
    ]


def test_habits_are_those_of_the_last_week() -> None:
    days = complete_days(hours(10), 10 * DAY, ())
    habits = habits_of(days)
    assert habits is not None
    assert habits.subscriptions == 3.0
    assert habits.pushes == 0.5
    assert habits.wake_ups == 7 * 24 * 72 / sum(day.tokens for day in days[-7:])
    assert habits_of(complete_days(hours(10, tokens=1), 10 * DAY, ())) is None
    assert habits_of([]) is None
