from heliograph.pipeline.planning.costs import values
from heliograph.pipeline.planning.forecast import ResourceLimits, describe_forecast, forecast
from heliograph.pipeline.planning.history import DaySums


def growing(count: int) -> list[DaySums]:
    """10,000 tokens and a million notifications more each day, evenly over the day."""
    return [
        DaySums(
            day=day,
            tokens=10_000 * day,
            subscriptions=50_000 * day,
            notifications=1_000_000 * day,
            pushes=500_000 * day,
            wake_ups=0,
            events=6_000_000 * day,
            busiest=1_000_000 * day // 24,
        )
        for day in range(1, count + 1)
    ]


def test_growth_is_unknown_without_history() -> None:
    found = forecast(growing(13), values(), ResourceLimits(cores=2))
    assert found is None
    [line] = describe_forecast(found, 13)
    assert line == "growth          unknown: 13 complete days of history, 14 are needed"


def test_when_each_resource_runs_out() -> None:
    limits = ResourceLimits(cores=1.0, store_gb=1.0, requests=1000.0, journal_gb=1.0)
    found = {item.resource: item for item in forecast(growing(20), values(), limits) or ()}
    assert list(found) == ["CPU", "store", "provider quota", "journal disk"]
    days = {name: item.exhaustion.days for name, item in found.items()}
    # 36.6 MB a day; 5.79 requests/s a day; 180 MB of journal a day, so a gigabyte was passed.
    assert round(days["store"] or 0, 1) == round(1000 / 36.6 - 20, 1)
    assert round(days["provider quota"] or 0) == round(1000 / (0.5e6 / 86_400) - 20)
    assert days["journal disk"] == 0.0
    assert found["CPU"].limit == 0.6
    lines = list(describe_forecast(list(found.values()), 20))
    assert lines[1].startswith("store           0.732 of 1 GB, +0.0366 a day (+0.0366 to +0.0366")
    assert lines[1].endswith("used up in 7 days (7 to 7)")
    assert lines[3].endswith("used up now")


def test_only_known_limits_are_forecast() -> None:
    found = forecast(growing(20), values(), ResourceLimits(store_gb=1e6))
    assert found is not None
    [line] = describe_forecast(found, 20)
    assert line.endswith("not used up within three years")
