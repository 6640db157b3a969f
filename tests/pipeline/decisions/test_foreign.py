from pathlib import Path
from typing import Any

from heliograph.actions.contract import ActionKind
from heliograph.pipeline.decisions.deciding import DecisionSettings
from heliograph.pipeline.decisions.foreign import LEAST_NOTIFICATIONS, decide, short, silent
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.schedule import once
from heliograph.pipeline.tables.tables import Tables
from tests.pipeline.support import Scribe, frame, pipeline as pipeline_of, write_journal

DAY = 86_400.0
FOREIGN: dict[str, Any] = {"own_server": False}


def nmsg(scribe: Scribe, number: int, at: float, sub: str, **columns: Any) -> None:
    values = {"token": "t", "ntf_seq": number, "provider": "apns_prod", **FOREIGN, **columns}
    name = f"{sub}-{number}"
    scribe("nmsg_received", at, notification=name, own_server=values["own_server"])
    scribe("nmsg_stored", at, notification=name, subscription=sub, **values)


def planted() -> Scribe:
    scribe = Scribe()
    for number in range(LEAST_NOTIFICATIONS):
        nmsg(scribe, number, number * 3600.0, "hourly, then silent")
        nmsg(scribe, number, number * 3600.0, "own", own_server=True)
        nmsg(scribe, number, number * 3600.0, "deleted")
    for number in range(LEAST_NOTIFICATIONS - 1):
        nmsg(scribe, number, number * 3600.0, "too few to know")
        nmsg(scribe, number, number * DAY / 4, "alive")
    for number in range(LEAST_NOTIFICATIONS):
        nmsg(scribe, number, number * 60.0 if number else -3 * DAY, "with a long pause before")
    deleted = {"token": "t", "subscription": "deleted", "through": 1}
    scribe("subscription_deleted", 2 * DAY, **deleted)
    scribe("router_stopped", 5 * DAY)
    return scribe


def pipeline_over(spark: Any, tables: Path, journal: Path) -> Pipeline:
    made = pipeline_of(spark, Tables(tables), journal)
    once(made)
    return made


def test_a_subscription_is_silent_compared_with_its_own_past(spark: Any) -> None:
    found = silent(frame(spark, planted().events)).collect()
    assert [row["subscription"] for row in found] == ["hourly, then silent"]
    assert found[0]["population"] == 4


def test_a_router_that_confirms_less_than_requested_is_reported(spark: Any) -> None:
    scribe = Scribe()
    for server, counts in {"a": [(5, 5), (3, 5)], "b": [(3, 5), (5, 5)]}.items():
        for count, expected in counts:
            numbers = {"count": count, "expected_count": expected}
            scribe("smp_subscribed", float(count), server=server, **FOREIGN, **numbers)
    found = short(frame(spark, scribe.events)).collect()
    assert [(row["server"], row["confirmed"], row["expected"]) for row in found] == [("a", 3, 5)]


def test_nothing_is_decided_from_journals_that_are_not_complete(spark: Any, tmp_path: Path) -> None:
    scribe = planted()
    # The push of every notification was accepted, so that all are accounted for.
    last = max(event["ntf_seq"] for event in scribe.events if "ntf_seq" in event)
    scribe.push("push_accepted", 5 * DAY, "t", notifications=[], through=last)
    pipeline = pipeline_over(spark, tmp_path / "whole", write_journal(tmp_path / "j", scribe))
    whole = decide(pipeline, DecisionSettings(), 5 * DAY)
    assert [item.kind for item in whole.decisions] == [ActionKind.RESUBSCRIBE]
    assert not whole.stopped
    assert "population" not in whole.decisions[0].evidence
    strict = decide(pipeline, DecisionSettings(max_percent=0.0), 5 * DAY)
    assert len(strict.decisions) == 1  # ten are always allowed
    del scribe.events[7]
    pipeline = pipeline_over(spark, tmp_path / "gaps", write_journal(tmp_path / "g", scribe))
    found = decide(pipeline, DecisionSettings(), 5 * DAY)
    assert not found.decisions
    assert found.stopped == ["nothing is decided from journals whose verdict is gaps"]
