"""Tokens without an owner, found in events that routers would write."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.contract import ActionKind
from heliograph.pipeline import upkeep
from heliograph.pipeline.decisions.dead_tokens import FINDINGS, decide
from heliograph.pipeline.decisions.deciding import DecisionSettings
from heliograph.pipeline.jobs import tokens as token_job
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.schedule import once
from heliograph.pipeline.tables.tables import Tables
from tests.pipeline.support import (
    START,
    Scribe,
    end_run,
    frame,
    pipeline as pipeline_of,
    write_segment,
)

DAY = 86_400.0
SLOW, VERIFY, REMOVE = FINDINGS.values()


class Town(Scribe):
    """The events of a notification router with tokens of several kinds."""

    number = 0

    def registered(self, token: str, at: float = 0.0) -> None:
        self("token_registered", at, token=token, provider="apns_prod")

    def seen(self, token: str, at: float, kind: str = "owner_seen", **columns: Any) -> None:
        self(kind, at, token=token, provider="apns_prod", **columns)

    def pushed(self, token: str, at: float) -> None:
        """Notified and accepted, so that the ledger accounts for it."""
        self.number += 1
        self.nmsg(self.number, at, token, f"s-{token}")
        self.accepted([self.number], self.number, at + 1, token)

    def acted(
        self, token: str, action: ActionKind, at: float, kind: str = "action_applied"
    ) -> None:
        self(kind, at, token=token, action="ab" * 16, action_kind=action.value)


def a_town() -> Town:
    """Tokens after forty days, each named by what must be decided."""
    town = Town()
    everyone = (
        *("dead", "new", "seen", "slowed", "slowed lately", "asked", "asked lately"),
        *("restored", "undone", "invalid", "deleted", "quiet", "received"),
    )
    for token in everyone:
        if token != "new":
            town.registered(token)
    for day in range(41):
        at = day * DAY
        if day == 25:
            town.registered("new", at)
        for token in everyone:
            if (token == "new" and day < 25) or (token == "quiet" and day > 15):
                continue
            if (token == "invalid" and day > 2) or (token == "deleted" and day > 2):
                continue
            town.pushed(token, at + 10)
        if day % 15 == 5:
            town.seen("seen", at, kind="token_periodic", interval=20)
        if day == 2:
            town("token_invalid", at + 60, token="invalid", provider="apns_prod", through=10_000)
            town("token_deleted", at + 60, token="deleted", through=10_000)
        for token in ("slowed", "asked", "asked lately", "restored", "undone"):
            if day == 23:
                town.acted(token, SLOW, at)
        for token in ("asked", "restored"):
            if day == 27:
                town.acted(token, VERIFY, at)
        if day == 30:
            town.seen("restored", at, reason="restored")
            town.acted("undone", SLOW, at, kind="action_undone")
        if day == 39:
            town.acted("slowed lately", SLOW, at)
            town.acted("asked lately", VERIFY, at)
    town("router_stopped", 41 * DAY)
    return town


def with_receipt(town: Town) -> Scribe:
    """A device that reported the last notification of one of the tokens."""
    last = [e for e in town.events if e["kind"] == "nmsg_stored" and e["token"] == "received"][-1]
    device = Scribe("phone", "agent")
    device("agent_decrypted", 40 * DAY + 20, notification=last["notification"])
    return device


EXPECTED = {
    ("dead", SLOW),
    ("undone", SLOW),
    ("slowed", VERIFY),
    ("asked", REMOVE),
}


def ingest(spark: Any, directory: Path, *scribes: Scribe, segments: int = 1) -> Pipeline:
    journal = directory / "journal"
    for scribe in scribes:
        size = len(scribe.events) // segments + 1
        for number in range(segments):
            events = scribe.events[number * size : (number + 1) * size]
            if events:
                write_segment(journal, f"{scribe.router}/{scribe.boot}-{number + 1:08d}", events)
        end_run(journal, scribe, segments)
    made = pipeline_of(spark, Tables(directory / "tables"), journal)
    once(made)
    return made


def found(made: Pipeline) -> set[tuple[str, ActionKind]]:
    result = decide(made, DecisionSettings(max_percent=50.0), 0.0)
    assert not result.stopped
    return {(item.subject, item.kind) for item in result.decisions}


@pytest.fixture(scope="module")
def town(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    made = a_town()
    return ingest(spark, tmp_path_factory.mktemp("town"), made, with_receipt(made))


def test_each_token_is_at_its_stage(town: Pipeline) -> None:
    assert found(town) == EXPECTED


def test_evidence_does_not_change_from_day_to_day(town: Pipeline) -> None:
    decisions = decide(town, DecisionSettings(max_percent=50.0), 0.0).decisions
    [removal] = [item for item in decisions if item.kind is REMOVE]
    registered = int(START.timestamp() * 1e6)
    assert removal.evidence == {
        "finding": "dead_unanswered",
        "unseen_since": registered,
        "slowed_at": registered + int(23 * DAY * 1e6),
        "asked_at": registered + int(27 * DAY * 1e6),
    }


def test_raw_events_may_expire_and_files_be_merged(spark: Any, tmp_path: Path) -> None:
    town = a_town()
    made = ingest(spark, tmp_path, town, with_receipt(town), segments=3)
    upkeep.compact(made, everything=True)
    now = (START.timestamp()) + 41 * DAY
    upkeep.expire(made, now, 14.0, 90.0)
    assert made.read("events").where("at < '2026-01-20'").isEmpty()
    assert found(made) == EXPECTED
    # A token without any event is forgotten in the end.
    upkeep.expire(made, now + 60 * DAY, 14.0, 90.0)
    left = {row["token"] for row in made.tokens().collect()}
    assert "invalid" not in left
    assert "dead" in left


def test_nothing_is_decided_from_half_of_the_data_or_on_too_many(
    spark: Any, tmp_path: Path, town: Pipeline
) -> None:
    result = decide(town, DecisionSettings(max_percent=0.0), 0.0)
    assert len(result.decisions) == 4  # ten are always allowed
    scribe = a_town()
    del scribe.events[7]
    made = ingest(spark, tmp_path, scribe)
    result = decide(made, DecisionSettings(), 0.0)
    assert not result.decisions
    assert result.stopped == ["nothing is decided from journals whose verdict is gaps"]


def test_tokens_merge_in_any_order_and_twice(spark: Any) -> None:
    events = a_town().events
    parts = [token_job.tokens(frame(spark, events[start::3])) for start in range(3)]
    whole = sorted(map(tuple, token_job.tokens(frame(spark, events)).collect()))
    for order in ((0, 1, 2), (2, 0, 1), (1, 1, 2, 0, 2)):
        union = parts[order[0]]
        for number in order[1:]:
            union = union.unionByName(parts[number])
        assert sorted(map(tuple, token_job.merge_tokens(union).collect())) == whole
    [row] = [row for row in token_job.tokens(frame(spark, events)).collect() if row[1] == "seen"]
    assert row["smp_hosts"] == ["smp1.example.org"]
    assert row["seen_at"].replace(tzinfo=UTC) == datetime(2026, 2, 9, tzinfo=UTC)
