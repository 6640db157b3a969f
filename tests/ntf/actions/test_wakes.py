"""Wakes of many phones, by a router on real sockets with a real provider."""

import asyncio
import time
from pathlib import Path

import pyarrow as pa
import pytest

from heliograph.actions.contract import Action, ActionKind
from heliograph.actions.wakes import digest_of, new_wake_id, write_members
from heliograph.ntf.actions.runner import ActionRunner
from heliograph.ntf.push import waker
from heliograph.ntf.push.waker import Waker
from heliograph.wire.ntf.push import CheckMessagesPush
from tests.actions.support import ROUTER, an_action
from tests.ntf.actions.support import a_runner, cap, hashed, publish
from tests.ntf.support import NtfWorld, Phone
from tests.waiting import until

WAKE, CONTROL = ActionKind.WAKE_FLEET, ActionKind.CONTROL_WAKE


class Fleet:
    """Phones, and the pipeline's side of a wake of them."""

    def __init__(self, world: NtfWorld, tables: Path, phones: list[Phone]) -> None:
        self.world, self.tables = world, tables
        self.wake = new_wake_id()
        self.phones = sorted(phones, key=lambda phone: hashed("token", phone.token_id))
        self.tokens = [hashed("token", phone.token_id) for phone in self.phones]
        self.runner: ActionRunner = a_runner(world, tables, frozenset(), cap(10))
        self.controls = 0

    def write(self, tokens: list[str] | None = None) -> None:
        chosen = self.tokens if tokens is None else tokens
        rows = [
            {"wake": self.wake, "router": ROUTER, "position": number, "token": token}
            for number, token in enumerate(chosen)
        ]
        write_members(self.tables, pa.Table.from_pylist(rows))

    def action(self, rate: float, tokens: list[str] | None = None) -> Action:
        digest = digest_of(self.tokens if tokens is None else tokens)
        made = self.decided(WAKE, {"rate": rate, "digest": digest})
        publish(self.tables, made)
        return made

    def decided(self, kind: ActionKind, evidence: dict[str, object]) -> Action:
        now = int(time.time()) * 1_000_000
        later = now + 3_600_000_000
        return an_action(
            kind, subject=self.wake, evidence=evidence, decided_at=now, valid_until=later
        )

    async def apply(self, action: Action) -> str:
        [result] = (await self.runner.apply([action.action_id])).values()
        return result

    async def control(self, word: str) -> str:
        self.controls += 1
        made = self.decided(CONTROL, {"do": word, "at": self.controls})
        publish(self.tables, made)
        return await self.apply(made)

    def woken(self) -> list[int]:
        """How many wake-ups each phone got."""
        return [
            sum(
                isinstance(push, CheckMessagesPush)
                for push in self.world.apns.accepted(phone.device)
            )
            for phone in self.phones
        ]

    def progress(self) -> list[tuple[str, int]]:
        return [
            (event["status"], event["count"])
            for event in self.world.events
            if event.kind == "wake_progressed"
        ]


@pytest.fixture
async def fleet(world: NtfWorld, tmp_path: Path) -> Fleet:
    return Fleet(world, tmp_path / "tables", [await world.registered() for _ in range(6)])


def a_waker(world: NtfWorld) -> Waker:
    """One whose seconds the test counts."""
    router = world.router
    return Waker(
        router.store.database, router.outbox, router.observer, 3600.0, router.store.coordinator
    )


async def test_every_phone_is_woken_once_at_the_rate(fleet: Fleet) -> None:
    fleet.write()
    action = fleet.action(rate=2.0)
    assert await fleet.apply(action) == "applied"
    assert await fleet.apply(action) == "applied_before"
    await until(lambda: sum(fleet.woken()) == 6, 20.0)
    await until(lambda: fleet.progress()[-1:] == [("done", 6)], 10.0)
    assert fleet.woken() == [1] * 6
    [applied] = [event for event in fleet.world.events if event.kind == "action_applied"]
    assert applied["action_kind"] == "wake_fleet"


@pytest.fixture
def no_waker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the router itself not look for wakes."""
    monkeypatch.setattr(waker, "IDLE_CHECK", 3600.0)


async def test_a_rate_is_kept_and_pauses_make_no_burst(
    no_waker: None, small_world: NtfWorld, tmp_path: Path
) -> None:
    phones = [await small_world.registered() for _ in range(6)]
    fleet = Fleet(small_world, tmp_path / "tables", phones)
    fleet.write()
    steps = a_waker(small_world)
    assert await fleet.apply(fleet.action(rate=0.5)) == "applied"
    sizes = [len(await steps.wake(second)) for second in range(100, 104)]
    assert sizes in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert await fleet.control("pause") == "applied"
    assert [len(await steps.wake(second)) for second in (104, 105, 160)] == [0, 0, 0]
    assert await fleet.control("resume") == "applied"
    # A minute has passed: two seconds of the rate are made up for.
    assert len(await steps.wake(220)) <= 1
    assert await fleet.control("abort") == "applied"
    assert len(await steps.wake(240)) == 0
    assert await fleet.control("resume") == "disagreed"
    assert fleet.progress()[-1][0] == "aborted"


async def test_a_wake_goes_on_after_a_restart(small_world: NtfWorld, tmp_path: Path) -> None:
    phones = [await small_world.registered() for _ in range(4)]
    fleet = Fleet(small_world, tmp_path / "tables", phones)
    fleet.write()
    assert await fleet.apply(fleet.action(rate=1.0)) == "applied"
    await until(lambda: sum(fleet.woken()) >= 1, 20.0)
    await small_world.restart_ntf(*phones)
    await until(lambda: sum(fleet.woken()) == 4, 30.0)
    assert fleet.woken() == [1] * 4


async def test_a_list_that_was_not_signed_is_refused(small_world: NtfWorld, tmp_path: Path) -> None:
    phones = [await small_world.registered() for _ in range(2)]
    fleet = Fleet(small_world, tmp_path / "tables", phones)
    action = fleet.action(rate=100.0)
    assert await fleet.apply(action) == "forged"  # there is no list
    fleet.write(fleet.tokens[:1])
    assert await fleet.apply(action) == "forged"
    fleet.write(["00" * 16])
    assert await fleet.apply(action) == "forged"
    await asyncio.sleep(0.1)
    assert fleet.woken() == [0, 0]


async def test_tokens_of_another_router_are_left_out(small_world: NtfWorld, tmp_path: Path) -> None:
    fleet = Fleet(small_world, tmp_path / "tables", [await small_world.registered()])
    tokens = sorted([*fleet.tokens, "ff" * 16])
    fleet.write(tokens)
    assert await fleet.apply(fleet.action(100.0, tokens)) == "applied"
    await until(lambda: fleet.woken() == [1], 20.0)
    nobody = Fleet(small_world, tmp_path / "tables", [])
    nobody.write(["ff" * 16])
    assert await nobody.apply(nobody.action(100.0, ["ff" * 16])) == "unknown_subject"


async def test_undo_aborts_a_wake(small_world: NtfWorld, tmp_path: Path) -> None:
    phones = [await small_world.registered() for _ in range(3)]
    fleet = Fleet(small_world, tmp_path / "tables", phones)
    fleet.write()
    action = fleet.action(rate=0.02)
    assert await fleet.apply(action) == "applied"
    assert await fleet.runner.undo(action.action_id) == "undone"
    assert await fleet.control("resume") == "disagreed"
    await until(lambda: fleet.progress()[-1:] == [("aborted", 0)], 10.0)
