"""Notifications between the connection and the store."""

import asyncio

import pytest

from heliograph.ntf.subscriber import inbox
from heliograph.ntf.subscriber.inbox import Inbox
from tests.waiting import until


class Link:
    """A connection: what an inbox did to it."""

    def __init__(self) -> None:
        self.is_paused = False
        self.counts: list[int] = []
        self.inbox = Inbox(self._pause)
        self.begin_connection()

    def begin_connection(self) -> None:
        self.inbox.begin_connection(self.counts.append)

    def _pause(self, paused: bool) -> None:
        assert paused != self.is_paused
        self.is_paused = paused

    def receive(self, size: int) -> "asyncio.Future[int]":
        storing: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.inbox.put(storing, size)
        return storing


async def test_stored_notifications_are_counted() -> None:
    link = Link()
    for _ in range(3):
        storing = link.receive(10)
        assert link.inbox.waiting == 10
        storing.set_result(0)
        await link.inbox.all_stored()
    assert (link.is_paused, link.inbox.waiting) == (False, 0)
    assert link.counts == [10, 20, 30]


async def test_a_later_batch_does_not_count_before_an_earlier_one() -> None:
    link = Link()
    first, second, third = link.receive(1), link.receive(2), link.receive(4)
    second.set_result(0)
    await asyncio.sleep(0)
    assert link.counts == []
    first.set_result(0)
    await asyncio.sleep(0)
    assert link.counts == [3]
    third.set_result(0)
    await link.inbox.all_stored()
    assert link.counts == [3, 7]


async def test_each_connection_counts_from_its_first() -> None:
    link = Link()
    link.receive(5).set_result(0)
    await link.inbox.all_stored()
    link.begin_connection()
    link.receive(2).set_result(0)
    await link.inbox.all_stored()
    assert link.counts == [5, 2]


async def test_an_abandoned_batch_is_never_counted() -> None:
    link = Link()
    storing = link.receive(3)
    storing.cancel()
    await link.inbox.all_stored()
    assert link.inbox.waiting == 0
    link.receive(1).set_result(0)
    await link.inbox.all_stored()
    assert link.counts == []
    link.begin_connection()
    link.receive(1).set_result(0)
    await link.inbox.all_stored()
    assert link.counts == [1]


async def test_reading_pauses_beyond_the_limit_and_resumes_below() -> None:
    link = Link()
    first, second = link.receive(inbox.FIRST_LIMIT), link.receive(1)
    assert link.is_paused
    first.set_result(0)
    await until(lambda: not link.is_paused)
    assert not second.done()
    second.set_result(0)
    await link.inbox.all_stored()


async def test_the_limit_follows_the_speed_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MEASURE_SECONDS", 0.001)
    slow = Link()
    for _ in range(20):
        storing = slow.receive(1)
        await asyncio.sleep(0.005)
        storing.set_result(0)
        await slow.inbox.all_stored()
    assert slow.inbox.limit == inbox.MIN_LIMIT
    fast = Link()
    for _ in range(20):
        storing = fast.receive(100_000)
        await asyncio.sleep(0.002)
        storing.set_result(0)
        await fast.inbox.all_stored()
    assert fast.inbox.limit > inbox.FIRST_LIMIT
