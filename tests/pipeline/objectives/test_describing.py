from dataclasses import asdict

from heliograph.pipeline.objectives.budget import WINDOWS, Objectives, WindowCount, judge
from heliograph.pipeline.objectives.describing import describe
from heliograph.pipeline.objectives.objective import Objective

OUTAGE = dict.fromkeys(WINDOWS, WindowCount(900, 600))


def stored() -> dict[str, object]:
    """Objectives of an account: one that an outage breaks, and one with little data."""
    incomplete = {"3d": "events are known of 2 days only", "30d": "events are known of 2 days only"}
    results = (
        judge(Objective(990_000, 10), None, OUTAGE, incomplete),
        judge(Objective(999_000), "fcm", {"30d": WindowCount(5, 0)}, incomplete),
    )
    return asdict(Objectives(86_400.0, results, incomplete))


def test_all_is_said() -> None:
    lines = list(describe(stored()))
    assert lines[0].startswith("the 30 days until 1970-01-02 00:00:00 UTC")
    assert lines[1].split()[:3] == ["objective", "provider", "state"]
    assert lines[2].split() == [
        *("99%", "accepted", "in", "10s", "all", "missed", "60.000%", "-3900.0%"),
        *("40.00", "40.00", "40.00"),
    ]
    assert lines[3].split() == ["99.9%", "accepted", "fcm", "not", "enough", "data", "100.000%"]
    assert lines[4] == "not complete: 3d, 30d: events are known of 2 days only"
    assert len(lines) == 8
    assert "40.0 times as fast as allowed, over 1h and still over 5m" in lines[5]


def test_nothing_was_measured() -> None:
    assert list(describe({})) == ["no objective was measured yet: run `heliograph pipeline once`"]
    assert len(list(describe(asdict(Objectives())))) == 1
