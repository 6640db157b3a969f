"""Which routers lag: every state of a run, its head and its events."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from heliograph.journal.heads import HEARTBEAT, Head
from heliograph.pipeline.jobs.ingest import Summary
from heliograph.pipeline.jobs.reach import (
    DAMAGED,
    MAX_AGE,
    Heads,
    known_until,
    lags,
    stale,
    tails,
    without_receivers,
)
from heliograph.pipeline.jobs.routers import retire, with_summary

NOW = 1_000_000.0
GRACE = 300.0
OLD = int((NOW - HEARTBEAT - GRACE - 1) * 1e6)
RECENT = int((NOW - HEARTBEAT - GRACE + 1) * 1e6)
SEEN = {"r/5": [(1, 10)]}


def notes(part: str = "ntf", last_at: int = OLD, **facts: int) -> dict[str, Any]:
    return {"r": {"part": part, "boots": {"5": {"last_at": last_at, **facts}}}}


def heads(*found: Head, waiting: bool = False, empty: tuple[str, ...] = ()) -> Heads:
    runs = {head.run: head for head in found}
    return Heads(runs, frozenset(runs if waiting else ()), empty, NOW)


def head(seq: int = 10, at: int = OLD, *, ended: bool = False, boot: int = 5) -> Head:
    return Head("r", boot, "ntf", 3, seq, at, ended)


def found(known: dict[str, Any], heads: Heads) -> list[str]:
    return [lag.reason for lag in lags(SEEN, known, heads, NOW, GRACE)]


SILENT = "it has not stopped, and has written nothing since"
GONE = "the head of its last run is gone"


@pytest.mark.parametrize(
    ("last_at", "head_at", "ended", "is_behind", "waiting"),
    [*product((OLD, RECENT), (OLD, RECENT), (False, True), (False, True), (False, True))],
)
def test_a_run_with_a_head(
    last_at: int, head_at: int, ended: bool, is_behind: bool, waiting: bool
) -> None:
    """Green only if its end is known: it ended, or its events or its head are recent."""
    known = heads(head(11 if is_behind else 10, head_at, ended=ended), waiting=waiting)
    is_recent = last_at == RECENT or (head_at == RECENT and not is_behind)
    is_over = ended and not waiting
    assert found(notes(last_at=last_at), known) == ([] if is_recent or is_over else [SILENT])
    gaps = tails(SEEN, notes(last_at=last_at), known)
    assert [(gap.first_seq, gap.last_seq) for gap in gaps] == (
        [(11, 11)] if is_behind and not waiting else []
    )


@pytest.mark.parametrize("last_at", [OLD, RECENT])
def test_a_run_without_a_head(last_at: int) -> None:
    stopped = notes(last_at=last_at, stopped_at=last_at)
    assert found(stopped, heads()) == [GONE]
    assert found(notes(last_at=last_at), heads()) == ([SILENT] if last_at == OLD else [GONE])


def test_a_run_that_began_after_the_heads_were_stored() -> None:
    """A report reads newer events than the last account has read heads."""
    since = int(NOW * 1e6) + 1
    stored = replace(heads(), is_stored=True)
    assert found(notes(last_at=since), stored) == []
    assert found(notes(last_at=since), heads()) == [GONE]
    assert found(notes(last_at=since - 2), stored) == [GONE]


def test_a_run_that_never_wrote() -> None:
    """All of its segments are lost: each of its events is counted."""
    new = head(7, OLD, ended=True, boot=9)
    known = notes(stopped_at=OLD)
    assert found(known, heads(new)) == []
    [gap] = tails(SEEN, known, heads(new))
    assert (gap.boot, gap.first_seq, gap.last_seq, gap.from_at) == (9, 1, 7, 9)
    assert found({}, heads(head(0))) == [SILENT]
    assert found({}, heads(head(0, RECENT))) == []


def test_a_clock_that_is_ahead_hides_no_silence() -> None:
    ahead = int((NOW + HEARTBEAT + GRACE + 1) * 1e6)
    assert found(notes(), heads(head(at=ahead))) == ["its clock is ahead, so it may have stopped"]
    assert found(notes(last_at=ahead), heads(head(at=ahead, ended=True))) == []
    assert found(notes(), heads(head(at=ahead - 2_000_000))) == []


def test_a_damaged_head_is_no_end() -> None:
    """Also that of an earlier run, whose last segments may be missing."""
    known = replace(heads(head(at=RECENT)), damaged=("r/3",))
    assert found(notes(), known) == [DAMAGED]
    [lag] = lags(SEEN, {}, replace(heads(), damaged=("other/3",)), NOW, GRACE)
    assert (lag.what, lag.reason) == ("other", DAMAGED)
    assert found(notes(stopped_at=OLD), replace(heads(), damaged=("r/5",))) == [GONE]


TWO = {**SEEN, "r/9": [(1, 3)]}


def two(**facts: int) -> dict[str, Any]:
    boots = {"5": {"last_at": OLD}, "9": {"last_at": RECENT, **facts}}
    return {"r": {"part": "ntf", "boots": boots}}


def test_a_killed_run_is_over_when_the_next_one_has_ended_it() -> None:
    going = heads(head(), head(3, RECENT, boot=9))
    assert [lag.until for lag in lags(TWO, two(), going, NOW, GRACE)] == [OLD]
    ended = heads(head(ended=True), head(3, RECENT, boot=9))
    assert lags(TWO, two(recovered_at=OLD + 1), ended, NOW, GRACE) == []


def test_a_killed_run_without_a_head_is_over_when_another_has_recovered() -> None:
    known = heads(head(3, RECENT, boot=9))
    assert [lag.until for lag in lags(TWO, two(), known, NOW, GRACE)] == [OLD]
    assert lags(TWO, two(recovered_at=OLD + 1), known, NOW, GRACE) == []


def test_a_silent_process_lags_though_another_has_recovered_since() -> None:
    """It may run, and its journal not arrive. Only its own name retires it."""
    known, both = two(recovered_at=OLD + 1), heads(head(), head(3, RECENT, boot=9))
    [lag] = lags(TWO, known, both, NOW, GRACE)
    assert (lag.what, lag.until, lag.reason) == ("r/5 (ntf)", OLD, SILENT)
    assert known_until(TWO, known, both) == {"r": OLD}
    assert lags(TWO, retire(known, "r/5", "ntf"), both, NOW, GRACE) == []
    assert lags(TWO, retire({}, "r/5", "ntf"), both, NOW, GRACE) == []


def test_a_retired_run_that_writes_again_is_expected_again() -> None:
    facts = {"last_at": OLD + 1}
    again = Summary(1, 0, {}, {}, {"r": {"5": facts}}, {"r": "ntf"}, {})
    known = with_summary(retire(two(), "r/5", "ntf"), again)
    assert known["r"]["boots"]["5"] == facts


def test_phones_and_retired_routers_may_be_silent() -> None:
    assert found(notes("device"), heads()) == []
    retired = {"r": {**notes()["r"], "retired": True}}
    assert found(retired, heads(head())) == []


def test_a_journal_that_nobody_writes() -> None:
    assert found({}, heads(empty=("/journal",))) == ["no router has written to this journal"]


def test_notifications_that_went_to_nobody() -> None:
    assert without_receivers({"delivered": 1}, notes("smp")) != []
    assert without_receivers({"accepted": 1}, notes("smp")) == []
    assert without_receivers({"delivered": 1}, notes("ntf")) == []


def test_an_idle_router_is_known_until_its_head() -> None:
    assert known_until(SEEN, notes(), heads(head(at=RECENT))) == {"r": RECENT}
    assert known_until(SEEN, notes(), heads(head(11, RECENT))) == {"r": OLD}
    assert known_until(SEEN, notes(), heads(head(at=RECENT, ended=True))) == {"r": None}
    assert known_until(SEEN, notes(stopped_at=OLD), heads()) == {}


def test_heads_that_were_read_long_ago() -> None:
    assert stale(heads(), NOW + MAX_AGE) == []
    assert stale(heads(), NOW + MAX_AGE + 1) != []
    assert stale(Heads(), NOW) == []
