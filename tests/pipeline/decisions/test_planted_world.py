"""What is planted in a world of real routers is found, repaired and undone, and nothing else.

Tokens whose owners are gone, subscriptions lost in five ways, floods, a failing provider and a
messaging router that became silent are between phones that are well. How weeks of history are made
is said in `planted`. HELIOGRAPH_PLANTED=large is a world of 1,000 dead tokens, 1,000 lost
subscriptions and 20 floods; the usual one is small. The test prints what it measures.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.contract import EVERYTHING, ActionKind
from heliograph.actions.pairing import make_pair_secret, pair_secret
from heliograph.actions.table import append_actions, read_actions
from heliograph.pipeline.decisions import anomalies, dead_tokens, foreign, reconcile
from heliograph.pipeline.decisions.deciding import Decisions, DecisionSettings, sign_all
from heliograph.pipeline.runner import Pipeline
from heliograph.pipeline.schedule import once
from heliograph.pipeline.tables.tables import Tables
from heliograph.sim.providers.script import ScriptRule
from heliograph.wire import ntf
from heliograph.wire.ntf.tokens import SubscriptionState
from tests.actions.support import SIGNER
from tests.journal.recorder import Noted
from tests.ntf.actions.support import a_runner, cap, hashed
from tests.ntf.support import AUTH, OK, NtfWorld, Phone
from tests.pipeline.decisions.planted import (
    FAILING,
    ROUND,
    Findings,
    Key,
    Line,
    Place,
    Segments,
    each,
    lose,
    scribe_of,
    subscriptions,
    take_snapshots,
    tokens,
)
from tests.pipeline.support import pipeline as pipeline_of, write_journal
from tests.waiting import until

SETTINGS = DecisionSettings(max_percent=95.0)
LOSSES = ("unsubscribed", "ended", "refused", "failed")
"""What snapshots show; the fifth is silence of a messaging router that writes none."""
HISTORY = 84
"""Rounds before the trouble."""
ROUNDS = 6
"""Those of the trouble, and those in which everybody who is watched gets a message."""
RATE = 36
"""Messages in a minute to those who are watched."""
SLOWNESS = ("slow_server", "slow_provider")
"""True on a busy machine, and not planted."""


@dataclass(frozen=True)
class Size:
    dead: int
    late: int
    alive: int
    lost: int
    """Of each kind."""
    orphans: int
    abusers: int
    flood: int
    """Messages in the minute of trouble, to each."""
    steps: tuple[int, ...]
    """Seconds after the beginning of the trouble at which the pipeline looks."""


SIZES = {
    "small": Size(20, 2, 12, 5, 3, 3, 480, (50, 60)),
    "large": Size(1000, 50, 500, 200, 50, 20, 560, (10, 20, 30, 40, 50, 60)),
}
SIZE = SIZES[os.environ.get("HELIOGRAPH_PLANTED", "small")]


def chosen(lines: Sequence[Line], number: int) -> Sequence[Line]:
    """Return those of the lines who get a message in a round."""
    return lines[number % ROUNDS :: ROUNDS]


class Planted:
    """Everybody in the world, and the loop about it."""

    dead: list[Line]
    late: list[Line]
    alive: list[Line]
    lost: dict[str, list[Line]]
    orphans: list[Line]
    talking: list[Line]
    watched: list[Line]
    quiet: list[Line]
    flooded: list[list[Line]]

    def __init__(self, place: Place, spark: Any, directory: Path) -> None:
        self.place, self.spark, self.directory = place, spark, directory
        self.world, self.tables = place.world, directory / "actions"
        self.runner = a_runner(place.world, self.tables, cap=cap(100_000))
        self.findings = Findings()
        self.runs = 0
        make_pair_secret(directory / "pair.key")
        self.secret = pair_secret(directory / "pair.key")

    @property
    def living(self) -> list[Phone]:
        """Phones whose owners use them, and that nobody floods."""
        lines = [*self.alive, *self.watched, *self.quiet]
        return list({line.phone.token_id: line.phone for line in lines}.values())

    async def plant(self, size: Size) -> None:
        place = self.place
        self.dead = await place.new_lines(await place.new_phones(size.dead))
        self.late = await place.new_lines(await place.new_phones(size.late))
        alive = await place.new_phones(size.alive)
        self.alive = await place.new_lines(alive)

        def owners(count: int) -> list[Phone]:
            return [alive[number % len(alive)] for number in range(count)]

        self.lost = {kind: await place.new_lines(owners(size.lost)) for kind in LOSSES}
        self.lost["silent"] = await place.new_lines(owners(size.lost), place.foreign)
        self.talking = await place.new_lines(owners(size.orphans), place.foreign)
        self.orphans = await place.new_lines(owners(size.orphans))
        self.watched = await place.new_lines(await place.new_phones(RATE, FAILING))
        self.quiet = await place.new_lines(owners(RATE), place.silent)
        flooded = await place.new_phones(size.abusers)
        pairs = [await place.new_lines(flooded) for _ in range(2)]
        # Half of them are flooded through one subscription, half of them through two.
        self.flooded = [
            list(lines[: 1 + number % 2]) for number, lines in enumerate(zip(*pairs, strict=True))
        ]
        for _ in range(foreign.LEAST_NOTIFICATIONS):
            await each(Line.send, [*self.lost["silent"], *self.talking])
        await place.notify([*self.dead, *self.late, *self.alive])

    async def pipeline(self) -> Pipeline:
        """Run the pipeline over the journal so far."""
        await until(lambda: self.world.router.outbox.in_flight == 0)
        self.runs += 1
        place = self.directory / f"run{self.runs}"
        journal = write_journal(place / "journal", scribe_of(self.world.events))
        made = pipeline_of(self.spark, Tables(place / "tables"), journal)
        await asyncio.to_thread(once, made)
        return made

    async def act(self, name: str, truth: set[Key], decide: Callable[[], Decisions]) -> None:
        """Decide, compare with what was planted, and apply."""
        began = time.monotonic()
        decisions = await asyncio.to_thread(decide)
        self.findings.seconds[name] = time.monotonic() - began
        assert decisions.stopped == []
        self.findings.compare(
            truth, {(str(item.evidence["finding"]), item.subject) for item in decisions.decisions}
        )
        signed = sign_all(decisions.decisions, SIGNER, SETTINGS)
        # Twice is once.
        assert [append_actions(self.tables, signed) for _ in range(2)] == [len(signed), 0]
        await self.runner.apply_automatic()
        # Each exactly once.
        known = Counter(row["action_id"] for row in read_actions(self.tables))
        assert self.journaled("action_applied") == known

    async def find_lost(self) -> None:
        """Lose subscriptions, find them in snapshots, and check the next push of each."""
        place, folder = self.place, self.directory / "snapshots"
        for kind in LOSSES:
            for line in self.lost[kind]:
                await lose(place, kind, line)
        for line in self.orphans:
            assert await line.queue.delete(line.sender) == OK
            await line.phone.until_state(line.subscription_id, SubscriptionState.DELETED)
        await take_snapshots(self.world, folder, self.secret)
        truth = {key for kind in LOSSES for key in subscriptions(kind, self.lost[kind])}
        await self.act(
            "lost",
            truth | subscriptions("orphan", self.orphans),
            lambda: reconcile.decide(self.spark, folder, SETTINGS, time.time()),
        )
        repaired = [line for kind in LOSSES for line in self.lost[kind]]
        await self._until_subscribed(repaired)
        await place.notify(repaired)
        await take_snapshots(self.world, folder, self.secret)
        assert reconcile.decide(self.spark, folder, SETTINGS, time.time()).decisions == []

    async def _until_subscribed(self, lines: Sequence[Line]) -> None:
        for line in lines:
            notifiers = line.smp.router.subscribers.notifiers
            await until(partial(notifiers.__contains__, line.queue.notifier_id))

    async def age(self, days: int, *, seen: Sequence[Phone]) -> None:
        """Let days pass; then owners use their phones, and everybody is notified."""
        await self.place.age(days)
        await self.place.see([*seen, *(lines[0].phone for lines in self.flooded)])
        await self.place.notify([*self.alive, *self.talking])
        # A token that is slowed gets a push a day.
        await self.place.notify([*self.dead, *self.late])

    async def remove_dead(self) -> None:
        """Take dead tokens away in stages; some owners come back in time."""
        dead, late = ([line.phone for line in lines] for lines in (self.dead, self.late))
        living = self.living
        for line in self.lost["silent"]:
            await lose(self.place, "silent", line)
        await self.age(12, seen=living)
        # Owners who were not seen for ten days are not gone.
        await self.age(10, seen=living[::2])
        made = await self.pipeline()
        silent = subscriptions("silent", self.lost["silent"])
        await self.act("silent", silent, lambda: foreign.decide(made, SETTINGS, time.time()))
        await self._until_subscribed(self.lost["silent"])
        await self.place.notify(self.lost["silent"])

        def decide(pipeline: Pipeline) -> Callable[[], Decisions]:
            return lambda: dead_tokens.decide(pipeline, SETTINGS, time.time())

        await self.act("dead", tokens("dead", [*dead, *late]), decide(made))
        await self.age(4, seen=living)
        for phone in late:
            self.world.apns.skip(phone.device)
        await self.act(
            "dead_slowed", tokens("dead_slowed", [*dead, *late]), decide(await self.pipeline())
        )
        for phone in late:
            assert await phone.tvfy(await phone.code()) == OK
        await until(lambda: self.world.router.outbox.in_flight == 0)
        await self.age(8, seen=[*living, *late])
        await self.act(
            "dead_unanswered", tokens("dead_unanswered", dead), decide(await self.pipeline())
        )
        for phone in dead:
            assert await phone.ask(ntf.TCHK(), phone.token_id) == AUTH

    async def find_trouble(self, size: Size) -> dict[str, int]:
        """Flood phones while a provider fails and a router is silent; return times of detection."""
        place = self.place
        start = time.time() // ROUND * ROUND - (HISTORY + 2 * ROUNDS) * ROUND
        await place.end_past(start)
        ordinary = [line for both in zip(self.watched, self.quiet, strict=True) for line in both]
        for number in range(HISTORY):
            some = chosen(ordinary, number)
            await place.spread(partial(place.notify, some), start + number * ROUND)
        trouble_at = start + HISTORY * ROUND
        place.failing.play(ScriptRule(status=503, reason="ServiceUnavailable"))

        async def trouble(some: Sequence[Line], number: int) -> None:
            first = len(self.world.journal.events)
            await each(Line.send, some)

            async def flood(lines: Sequence[Line]) -> None:
                for index in range(number):
                    await lines[index % len(lines)].send()

            await asyncio.gather(*map(flood, self.flooded))
            await place.until_stored(first, number * len(self.flooded) + len(some))

        for number in range(ROUNDS):
            some = chosen(self.watched, number)
            flood = size.flood * (number + 1) // ROUNDS - size.flood * number // ROUNDS
            await place.spread(partial(trouble, some, flood), trouble_at + number * ROUND)
        ticks = [trouble_at, *(trouble_at + step for step in size.steps)]
        # The pipeline knows these rounds alone: of three quiet hours, the median would be nothing.
        recent = [event for event in self.world.events if event.at >= start]
        begun = Noted("router_started", start, {"through": 0})
        segments = Segments([begun, *recent], ticks, self.directory / "trouble" / "journal")
        made = pipeline_of(
            self.spark,
            Tables(self.directory / "trouble" / "tables"),
            self.directory / "trouble" / "journal",
        )

        def look() -> Decisions:
            made.ingester.ingest_batch()
            made.update_rates()
            return anomalies.decide(made, SETTINGS, time.time())

        first: dict[Key, int] = {}
        decided = Decisions()
        began = time.monotonic()
        for step in (0, *size.steps):
            segments.write_until(trouble_at + step)
            result = await asyncio.to_thread(look)
            assert result.stopped == []
            for item in result.decisions:
                finding = str(item.evidence["finding"])
                if finding not in SLOWNESS and (finding, item.subject) not in first:
                    assert step, item
                    first[finding, item.subject] = step
                    decided.decisions.append(item)
        self.findings.seconds["a look for trouble"] = (time.monotonic() - began) / (
            len(size.steps) + 1
        )
        [quiet] = {str(line.smp.address) for line in self.quiet}
        truth = {
            *subscriptions(
                "subscription_flood", [lines[0] for lines in self.flooded if len(lines) == 1]
            ),
            *tokens("token_flood", [lines[0].phone for lines in self.flooded if len(lines) > 1]),
            ("failing_provider", EVERYTHING),
            ("silent_server", hashed("server", quiet.encode())),
        }
        await self.act("trouble", truth, lambda: decided)
        place.failing.play()
        found: dict[str, int] = {}
        for (finding, _), step in first.items():
            found[finding] = max(found.get(finding, 0), step)
        return found

    async def undo_everything(self) -> Counter[str]:
        """Undo all actions, the newest first; return how many of each kind."""
        rows = read_actions(self.tables)
        rows.sort(key=lambda row: row["decided_at"], reverse=True)
        undone: Counter[str] = Counter()
        for row in rows:
            result = await self.runner.undo(row["action_id"])
            is_lasting = row["kind"] == ActionKind.RESUBSCRIBE.value
            assert result == ("nothing_to_undo" if is_lasting else "undone"), row["kind"]
            undone[row["kind"]] += not is_lasting
        return undone

    def journaled(self, kind: str) -> Counter[str]:
        return Counter(event["action"] for event in self.world.events if event.kind == kind)


@asynccontextmanager
async def a_place(directory: Path) -> AsyncIterator[Place]:
    place = Place(NtfWorld(f"sqlite:///{directory}/ntf.db", directory))
    await place.start()
    try:
        yield place
    finally:
        await place.stop()


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_everything_planted_is_found_repaired_and_undone(spark: Any, tmp_path: Path) -> None:
    began = time.monotonic()
    async with a_place(tmp_path) as place:
        planted = Planted(place, spark, tmp_path)
        await planted.plant(SIZE)
        await planted.find_lost()
        await planted.remove_dead()
        delays = await planted.find_trouble(SIZE)
        rows = read_actions(planted.tables)
        touched = {row["subject"] for row in rows}
        living = {hashed("token", phone.token_id) for phone in planted.living}
        assert not touched & living
        findings = planted.findings
        assert findings.recall >= 0.99, findings.wrong
        assert findings.precision >= 0.99, findings.wrong
        undone = await planted.undo_everything()
        # Everybody gets the next push, removed and throttled or not.
        assert planted.journaled("action_undone").total() == undone.total()
        everyone = [
            *planted.dead,
            *planted.late,
            *planted.alive,
            *planted.watched,
            *planted.quiet,
            *(line for lines in planted.flooded for line in lines),
        ]
        await planted._until_subscribed(everyone)
        await place.notify(everyone)
    print(  # noqa: T201  what the test measures
        *("", *findings.lines()),
        f"recall {findings.recall:.4f}, precision {findings.precision:.4f}, of"
        f" {len(living)} living tokens 0 touched, {undone.total()} of {len(rows)} undone",
        f"seconds of event time to detection: {delays}",
        f"seconds of jobs: { {name: round(value, 1) for name, value in findings.seconds.items()} }",
        f"{time.monotonic() - began:.0f} s in all, {len(place.world.events)} events",
        sep="\n",
    )
