"""What one messaging router sent, on its way to the store."""

import asyncio

import pytest

from heliograph.ntf import inbox
from heliograph.ntf.inbox import Inbox
from tests.smp.support import until


class Link:
    """A connection: what an inbox asked of it."""

    def __init__(self) -> None:
        self.held = False
        self.cuts = 0
        self.inbox = Inbox(self._hold, self._cut)

    def _hold(self, held: bool) -> None:
        assert held != self.held
        self.held = held

    def _cut(self) -> None:
        self.cuts += 1

    def receive(self, size: int) -> "asyncio.Future[None]":
        storing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.inbox.put(storing, size)
        return storing


async def test_what_is_stored_in_time_changes_nothing() -> None:
    link = Link()
    for _ in range(20):
        storing = link.receive(10)
        assert link.inbox.waiting == 10
        storing.set_result(None)
        await link.inbox.all_stored()
    assert (link.held, link.cuts, link.inbox.waiting) == (False, 0, 0)


async def test_reading_stops_beyond_the_limit_and_resumes_below() -> None:
    link = Link()
    first, second = link.receive(inbox.FIRST_LIMIT), link.receive(1)
    assert link.held
    first.set_result(None)
    await until(lambda: not link.held)
    assert not second.done()
    second.set_result(None)
    await link.inbox.all_stored()


async def test_the_oldest_decides_when_to_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress with others does not help it."""
    monkeypatch.setattr(inbox, "LET_GO_AFTER", 0.1)
    link = Link()
    oldest = link.receive(1)
    while not link.cuts:
        link.receive(1).set_result(None)
        await asyncio.sleep(0.01)
    waiting = asyncio.ensure_future(link.inbox.all_stored())
    await asyncio.sleep(0)
    assert not waiting.done()
    oldest.set_result(None)
    await waiting


async def test_one_after_another_in_time_is_no_reason_to_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "LET_GO_AFTER", 5.0)
    link = Link()
    pending = [link.receive(1)]
    for _ in range(30):
        pending.append(link.receive(1))
        pending.pop(0).set_result(None)
        await asyncio.sleep(0.01)
    assert not link.cuts
    pending.pop().set_result(None)
    await link.inbox.all_stored()


async def test_after_letting_go_the_next_stall_is_noticed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "LET_GO_AFTER", 0.02)
    link = Link()
    for cuts in (1, 2):
        storing = link.receive(1)
        await until(lambda cuts=cuts: link.cuts == cuts)  # type: ignore[misc]
        storing.set_result(None)
        await link.inbox.all_stored()


async def test_the_limit_follows_the_speed_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MEASURED_SECONDS", 0.001)
    slow = Link()
    for _ in range(20):
        storing = slow.receive(1)
        await asyncio.sleep(0.005)
        storing.set_result(None)
        await slow.inbox.all_stored()
    assert slow.inbox.limit == inbox.MIN_LIMIT
    fast = Link()
    for _ in range(20):
        storing = fast.receive(100_000)
        await asyncio.sleep(0.002)
        storing.set_result(None)
        await fast.inbox.all_stored()
    assert fast.inbox.limit > inbox.FIRST_LIMIT


async def test_storing_that_is_given_up_is_over() -> None:
    link = Link()
    storing = link.receive(3)
    storing.cancel()
    await link.inbox.all_stored()
    assert link.inbox.waiting == 0
