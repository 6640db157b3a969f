import asyncio
import logging

import pytest

from heliograph.tasks import TaskScope


async def _fail() -> None:
    raise ValueError("broken")


async def _forever() -> None:
    await asyncio.Event().wait()


async def test_spawn_returns_the_named_task_with_its_result() -> None:
    async def work() -> int:
        return 7

    async with TaskScope() as scope:
        task = scope.spawn(work(), name="seven")
        assert task.get_name() == "seven"
        assert len(scope) == 1
        assert list(scope) == [task]
        assert await task == 7
    assert len(scope) == 0
    assert scope


async def test_a_failure_is_logged_with_the_name_and_spares_the_siblings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with TaskScope() as scope:
        sibling = scope.spawn(_forever(), name="sibling")
        scope.spawn(_fail(), name="the broken one")
        await asyncio.sleep(0.01)
        assert not sibling.done()
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage() == "task the broken one failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_the_end_of_the_scope_cancels_and_waits() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await _forever()
        finally:
            await asyncio.sleep(0.01)
            ended.set()

    async with TaskScope() as scope:
        scope.spawn(work(), name="work")
        await asyncio.sleep(0)
    assert ended.is_set()


async def test_a_task_spawned_while_closing_or_later_is_cancelled() -> None:
    scope = TaskScope()

    async def work() -> None:
        try:
            await _forever()
        finally:
            scope.spawn(_forever(), name="late")

    scope.spawn(work(), name="work")
    await asyncio.sleep(0)
    await scope.close()
    assert len(scope) == 0
    task = scope.spawn(_forever(), name="later still")
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_task_that_ignores_its_cancellation_is_named_after_the_grace_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    released = asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    scope = TaskScope()
    task = scope.spawn(stubborn(), name="stubborn")
    await asyncio.sleep(0)
    await scope.close(0.05)
    assert "tasks still run 0.05 s after they were cancelled: stubborn" in caplog.text
    released.set()
    await task


async def test_a_task_may_close_its_own_scope() -> None:
    scope = TaskScope()

    async def work() -> str:
        scope.spawn(_forever(), name="other")
        await scope.close()
        return "done"

    assert await scope.spawn(work(), name="closes") == "done"


async def test_wait_lets_every_task_end_by_itself() -> None:
    ended = []

    async def work() -> None:
        await asyncio.sleep(0.01)
        ended.append(True)

    scope = TaskScope()
    scope.spawn(work(), name="a")
    scope.spawn(work(), name="b")
    await scope.wait()
    assert ended == [True, True]
