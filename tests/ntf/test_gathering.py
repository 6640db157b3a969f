"""Work asked for piece by piece and done together."""

import asyncio

import pytest

from heliograph.db.errors import DatabaseError, DatabaseLost
from heliograph.ntf import gathering
from heliograph.ntf.gathering import Gathering


class Works:
    """Doubles numbers, fails for those that are bad, and can be made to wait."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.bad: dict[int, Exception] = {}
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.gathering = Gathering(self._double)

    async def _double(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        await self.may_go.wait()
        for number in numbers:
            if number in self.bad:
                raise self.bad[number]
        return [2 * number for number in numbers]


async def test_what_is_asked_for_in_one_turn_goes_together() -> None:
    works = Works()
    assert await asyncio.gather(*map(works.gathering.ask, (1, 2, 3))) == [2, 4, 6]
    assert await works.gathering.ask(4) == 8
    assert works.batches == [[1, 2, 3], [4]]


async def test_what_comes_meanwhile_goes_with_the_next() -> None:
    works = Works()
    works.may_go.clear()
    first = works.gathering.ask(1)
    await asyncio.sleep(0)
    later = [works.gathering.ask(2), works.gathering.ask(3)]
    works.may_go.set()
    assert await asyncio.gather(first, *later) == [2, 4, 6]
    assert works.batches == [[1], [2, 3]]


async def test_one_that_fails_is_not_the_undoing_of_others() -> None:
    works = Works()
    works.bad[2] = DatabaseError("no")
    results = await asyncio.gather(*map(works.gathering.ask, (1, 2, 3)), return_exceptions=True)
    assert results == [2, works.bad[2], 6]
    assert works.batches == [[1, 2, 3], [1], [2], [3]]


async def test_a_lost_database_fails_all_at_once() -> None:
    works = Works()
    works.bad[2] = DatabaseLost("gone")
    results = await asyncio.gather(*map(works.gathering.ask, (1, 2, 3)), return_exceptions=True)
    assert results == [works.bad[2]] * 3
    assert works.batches == [[1, 2, 3]]


async def test_an_asker_that_left_does_not_stop_the_others() -> None:
    works = Works()
    works.may_go.clear()
    left, stays = works.gathering.ask(1), works.gathering.ask(2)
    await asyncio.sleep(0)
    left.cancel()
    works.may_go.set()
    assert await stays == 4


async def test_not_too_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MAX_TOGETHER", 2)
    works = Works()
    assert await asyncio.gather(*map(works.gathering.ask, range(5))) == [0, 2, 4, 6, 8]
    assert works.batches == [[0, 1], [2, 3], [4]]


async def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    works = Works()
    left = works.gathering.ask(1)
    left.cancel()
    assert await works.gathering.ask(2) == 4
    assert works.batches == [[2]]
