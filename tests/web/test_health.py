"""What the page reports as a problem, and what it advises."""

from typing import Any

import pytest

from heliograph.web.health import Severity, problems, state_of
from heliograph.web.live import live
from heliograph.web.metrics.sampler import METRICS_OFF, NO_ANSWER, NOT_ASKED

NOW = 1_000_000_000.0
DAY = 86_400


def pipeline(state: str, lag: float | None, unaccounted: int | None) -> dict[str, Any]:
    known = {"state": state, "lag_seconds": lag, "unaccounted": unaccounted}
    return {**known, "objectives_until": None, "objectives": []}


def document(**changes: Any) -> dict[str, Any]:
    """A system without a problem, but for the changes."""
    router = {"problem": None, "as_of": NOW, "is_stale": False}
    provider = {"name": "fcm", "state": "ok", "accepted": 1, "failed": 0, "in_flight": 0}
    return {
        **live([], []),
        "routers": {"ntf": router, "smp": router},
        "processes": [{"name": "ntf", "state": "running", "ended": ""}],
        "disks": [{"places": ["ntf"], "total": 1 << 40, "free": 1 << 39}],
        "providers": [provider],
        "pipeline": pipeline("complete", 1.0, 0),
        **changes,
    }


def router(problem: str) -> dict[str, Any]:
    good = {"problem": None, "as_of": NOW, "is_stale": False}
    return {"ntf": {**good, "problem": problem}, "smp": good}


def test_nothing_is_wrong() -> None:
    assert problems(document(), {"ntf": {"online": NOW + 100 * DAY}}, NOW) == []
    assert state_of([], is_known=True) == "ok"
    assert state_of([], is_known=False) == "unknown"
    assert problems(document(routers=router(NOT_ASKED)), {}, NOW) == []


@pytest.mark.parametrize(
    ("changes", "key", "severity"),
    [
        ({"routers": router(NO_ANSWER)}, "router:ntf", Severity.CRITICAL),
        ({"routers": router("not ready: the store fails: full")}, "router:ntf", Severity.CRITICAL),
        ({"routers": router("not ready: starting")}, "router:ntf", Severity.WARNING),
        ({"routers": router(METRICS_OFF)}, "router:ntf", Severity.WARNING),
        (
            {"processes": [{"name": "smp", "state": "waiting", "ended": "exit code 1"}]},
            "process:smp",
            Severity.CRITICAL,
        ),
        (
            {"processes": [{"name": "pipeline", "state": "starting", "ended": ""}]},
            "process:pipeline",
            Severity.WARNING,
        ),
        (
            {"disks": [{"places": ["ntf"], "total": 1 << 40, "free": 500 << 20}]},
            "disk:ntf",
            Severity.WARNING,
        ),
        (
            {"disks": [{"places": ["ntf"], "total": 1 << 40, "free": 5 << 20}]},
            "disk:ntf",
            Severity.CRITICAL,
        ),
        ({"providers": [{"name": "fcm", "state": "down"}]}, "provider:fcm", Severity.CRITICAL),
        ({"providers": [{"name": "fcm", "state": "failing"}]}, "provider:fcm", Severity.WARNING),
        ({"providers": [{"name": "apns_null", "state": "idle"}]}, "providers", Severity.WARNING),
        ({"pending": {"message": 2}, "oldest_pending_seconds": 61}, "pending", Severity.WARNING),
        ({"pending": {"message": 2}, "oldest_pending_seconds": 601}, "pending", Severity.CRITICAL),
        (
            {"pipeline": pipeline("unaccounted", 1.0, 2)},
            "pipeline:unaccounted",
            Severity.WARNING,
        ),
        ({"found": {"failing_provider": 1}}, "found:failing_provider", Severity.WARNING),
        ({"found": {"of_later": 2}}, "found:of_later", Severity.WARNING),
        (
            {"pipeline": pipeline("lagging", 1.0, 0)},
            "pipeline:lagging",
            Severity.WARNING,
        ),
        (
            {"pipeline": pipeline("gaps", 1.0, 0)},
            "pipeline:gaps",
            Severity.WARNING,
        ),
        (
            {"pipeline": pipeline("complete", 3600.0, 0)},
            "pipeline:lag",
            Severity.WARNING,
        ),
        (
            {"pipeline": pipeline("unreadable", None, None)},
            "pipeline:tables",
            Severity.WARNING,
        ),
    ],
)
def test_each_problem(changes: dict[str, Any], key: str, severity: Severity) -> None:
    [found] = problems(document(**changes), {}, NOW)
    assert (found.key, found.severity) == (key, severity)
    assert found.text.endswith(".")
    assert found.action
    assert state_of([found], is_known=True) == severity.value


@pytest.mark.parametrize(
    ("left", "severity"), [(29 * DAY, Severity.WARNING), (-1, Severity.CRITICAL)]
)
def test_certificates(left: float, severity: Severity) -> None:
    [found] = problems(document(), {"smp": {"online": NOW + left}}, NOW)
    assert (found.key, found.severity) == ("certificate:smp:online", severity)


def test_the_worst_comes_first() -> None:
    changes = {
        "providers": [{"name": "a", "state": "failing"}, {"name": "b", "state": "down"}],
    }
    assert [found.key for found in problems(document(**changes), {}, NOW)] == [
        "provider:b",
        "provider:a",
    ]


def test_a_pipeline_that_is_off_is_no_problem() -> None:
    off = pipeline("off", 9999.0, None)
    assert problems(document(pipeline=off), {}, NOW) == []


def burning(until: float) -> dict[str, Any]:
    alerts = [
        {"name": "fast", "severity": "critical", "text": "Fast."},
        {"name": "slow", "severity": "warning", "text": "Slow."},
    ]
    result = {"objective": "99% accepted", "provider": "fcm", "alerts": alerts}
    quiet = {"objective": "99% accepted", "provider": "all", "alerts": []}
    known = {"objectives_until": until, "objectives": [quiet, result]}
    return {"state": "complete", "lag_seconds": 1.0, "unaccounted": 0, **known}


def test_an_error_budget_that_burns() -> None:
    [found] = problems(document(pipeline=burning(NOW - 60)), {}, NOW)
    assert (found.key, found.text) == ("pipeline:objective:99% accepted:fcm", "Fast.")
    assert found.severity is Severity.CRITICAL
    assert problems(document(pipeline=burning(NOW - 3601)), {}, NOW) == []
