"""Items submitted one by one and run in batches."""

import asyncio

import pytest

from heliograph.db.errors import DatabaseError, DatabaseLost
from heliograph.ntf.store import batcher
from heliograph.ntf.store.batcher import Batcher


class Doubler:
    """Doubles numbers, fails for those that are bad, and can be made to wait."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.bad: dict[int, Exception] = {}
        self.may_run = asyncio.Event()
        self.may_run.set()
        self.batcher = Batcher(self._double)

    async def _double(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        await self.may_run.wait()
        for number in numbers:
            if number in self.bad:
                raise self.bad[number]
        return [2 * number for number in numbers]


async def test_items_of_one_turn_form_one_batch() -> None:
    doubler = Doubler()
    assert await asyncio.gather(*map(doubler.batcher.submit, (1, 2, 3))) == [2, 4, 6]
    assert await doubler.batcher.submit(4) == 8
    assert doubler.batches == [[1, 2, 3], [4]]


async def test_items_submitted_during_a_batch_form_the_next() -> None:
    doubler = Doubler()
    doubler.may_run.clear()
    first = doubler.batcher.submit(1)
    await asyncio.sleep(0)
    later = [doubler.batcher.submit(2), doubler.batcher.submit(3)]
    doubler.may_run.set()
    assert await asyncio.gather(first, *later) == [2, 4, 6]
    assert doubler.batches == [[1], [2, 3]]


async def test_only_the_bad_item_fails() -> None:
    doubler = Doubler()
    doubler.bad[2] = DatabaseError("no")
    results = await asyncio.gather(*map(doubler.batcher.submit, (1, 2, 3)), return_exceptions=True)
    assert results == [2, doubler.bad[2], 6]
    assert doubler.batches == [[1, 2, 3], [1], [2], [3]]


async def test_a_lost_database_fails_the_whole_batch() -> None:
    doubler = Doubler()
    doubler.bad[2] = DatabaseLost("gone")
    results = await asyncio.gather(*map(doubler.batcher.submit, (1, 2, 3)), return_exceptions=True)
    assert results == [doubler.bad[2]] * 3
    assert doubler.batches == [[1, 2, 3]]


async def test_a_cancelled_item_does_not_stop_the_others() -> None:
    doubler = Doubler()
    doubler.may_run.clear()
    left, stays = doubler.batcher.submit(1), doubler.batcher.submit(2)
    await asyncio.sleep(0)
    left.cancel()
    doubler.may_run.set()
    assert await stays == 4


async def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_BATCH", 2)
    doubler = Doubler()
    assert await asyncio.gather(*map(doubler.batcher.submit, range(5))) == [0, 2, 4, 6, 8]
    assert doubler.batches == [[0, 1], [2, 3], [4]]


async def test_an_item_cancelled_before_its_batch_is_not_run() -> None:
    doubler = Doubler()
    left = doubler.batcher.submit(1)
    left.cancel()
    assert await doubler.batcher.submit(2) == 4
    assert doubler.batches == [[2]]
