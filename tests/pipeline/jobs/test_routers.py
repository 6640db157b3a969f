"""Runs of a router, also of several processes at a time. No Spark."""

from heliograph.documents import JsonObject
from heliograph.pipeline.jobs.routers import RouterFacts, router_facts


def facts(**boots: JsonObject) -> RouterFacts:
    runs = {boot.removeprefix("b"): {"recovered_through": 0, **run} for boot, run in boots.items()}
    [found] = router_facts({"router": {"part": "ntf", "boots": runs}})
    return found


def test_a_run_that_did_not_stop_was_killed_before_the_next_recovery() -> None:
    first = {"recovered_at": 5, "last_at": 100}
    assert facts(b1=first).kills == ()
    assert facts(b1=first, b2={"recovered_at": 150, "last_at": 200}).kills == ((100, 150),)
    stopped = {**first, "stopped_at": 100}
    assert facts(b1=stopped, b2={"recovered_at": 150, "last_at": 200}).kills == ()


def test_runs_at_the_same_time_are_no_kills() -> None:
    one, other = {"recovered_at": 5, "last_at": 400}, {"recovered_at": 7, "last_at": 390}
    assert facts(b1=one, b2=other).kills == ()
    assert not facts(b1=one, b2={**other, "stopped_at": 390}).stopped
    assert facts(b1={**one, "stopped_at": 400}, b2={**other, "stopped_at": 390}).stopped


def test_one_of_several_is_killed_and_started_again() -> None:
    killed = {"recovered_at": 5, "last_at": 100}
    alive = {"recovered_at": 7, "last_at": 400}
    again = {"recovered_at": 150, "recovered_through": 9, "last_at": 390}
    found = facts(b1=killed, b2=alive, b3=again)
    assert found.kills == ((100, 150),)
    assert (found.recovered_boot, found.recovered_through) == (3, 9)
