"""Runs of a router, also of several processes at a time. No Spark."""

from pathlib import Path
from typing import Any

import pytest

from heliograph.documents import JsonObject
from heliograph.pipeline import upkeep
from heliograph.pipeline.jobs.rates import RATES_KEPT, since_by_router
from heliograph.pipeline.jobs.routers import RouterFacts, router_facts
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.pipeline.tables.tables import open_tables
from heliograph.runtime.errors import StartError


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


def test_the_clock_of_a_phone_retires_no_router() -> None:
    """Nor does it decide which rates are needed."""
    day = 86_400_000_000
    ends = {"smp": ("smp", 30), "ntf": ("ntf", 31), "old": ("ntf", 20), "phone": ("device", 45)}
    notes = {
        name: {"part": part, "boots": {"1": {"last_at": days * day}}}
        for name, (part, days) in ends.items()
    }
    found = router_facts(notes)
    assert [item.router for item in found if item.retired] == ["old"]
    assert since_by_router(found) == {"ntf": 31 * day - RATES_KEPT}
    phone = {"phone": notes["phone"]}
    assert not any(item.retired for item in router_facts(phone))


def test_rates_are_needed_before_the_newest_event_of_their_own_router() -> None:
    ends = {"a": 100 * RATES_KEPT, "b": 98 * RATES_KEPT}
    found = router_facts(
        {name: {"part": "ntf", "boots": {"1": {"last_at": at}}} for name, at in ends.items()}
    )
    assert since_by_router(found) == {"a": 99 * RATES_KEPT, "b": 97 * RATES_KEPT}


def test_a_router_or_one_of_its_runs_is_retired_by_name(tmp_path: Path) -> None:
    known = {"r": {"part": "ntf", "boots": {"5": {"last_at": 7}, "9": {"last_at": 11}}}}
    with open_tables(tmp_path) as tables:
        tables.commit("events", offsets=lambda _: Offsets(routers=known))
        no_spark: Any = None
        made = Pipeline(no_spark, tables, RunSettings(()))
        upkeep.retire(made, "r/5")
        boots = {"5": {"last_at": 7, "retired": 1}, "9": {"last_at": 11}}
        assert made.offsets.routers == {"r": {"part": "ntf", "boots": boots}}
        for name, others in (("r/6", "r/5, r/9"), ("r/", "r/5, r/9"), ("s", "r"), ("s/5", "r")):
            with pytest.raises(StartError, match=f"{name} is known; there are: {others}$"):
                upkeep.retire(made, name)
        upkeep.retire(made, "r")
        assert made.offsets.routers["r"]["retired"]
