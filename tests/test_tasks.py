import asyncio
import gc
import logging

import pytest

from heliograph.tasks import ScopeClosed, SharedTasks, TaskScope


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


async def test_the_failure_of_an_awaited_task_is_raised_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with TaskScope() as scope:
        with pytest.raises(ValueError, match="broken"):
            await scope.spawn(_fail(), name="the broken one", is_awaited=True)
    assert not caplog.records


async def test_the_failure_of_a_task_that_nobody_awaits_any_more_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scope = TaskScope()
    scope.spawn(_fail(), name="the broken one", is_awaited=True)
    await scope.wait()
    gc.collect()
    await asyncio.sleep(0)
    assert not caplog.records


async def test_cancel_does_not_wait_and_cancels_later_tasks_too() -> None:
    scope = TaskScope()
    task = scope.spawn(_forever(), name="work")
    await asyncio.sleep(0)
    scope.cancel()
    assert not task.done()
    late = scope.spawn(_forever(), name="late")
    await scope.wait()
    assert task.cancelled()
    assert late.cancelled()


class Counted:
    """Work that counts its runs, and returns a number or fails once it is released."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.runs = 0
        self.released = asyncio.Event()
        self.failure = failure

    async def run(self) -> int:
        self.runs += 1
        await self.released.wait()
        if self.failure is not None:
            raise self.failure
        return self.runs


async def test_callers_of_one_key_share_one_task() -> None:
    shared = SharedTasks[str, int]("work")
    one, other = Counted(), Counted()
    async with TaskScope() as callers:
        tasks = [callers.spawn(shared.run("a", one.run), name="caller") for _ in range(3)]
        tasks.append(callers.spawn(shared.run("b", other.run), name="caller"))
        await asyncio.sleep(0)
        assert len(shared) == 2
        one.released.set()
        other.released.set()
        assert await asyncio.gather(*tasks) == [1, 1, 1, 1]
    assert len(shared) == 0
    assert await shared.run("a", one.run) == 2


async def test_a_cancelled_caller_leaves_the_task_to_the_others() -> None:
    shared = SharedTasks[str, int]("work")
    work = Counted()
    async with TaskScope() as callers:
        first, second = (callers.spawn(shared.run("a", work.run), name="caller") for _ in "12")
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        work.released.set()
        assert await second == 1


async def test_every_caller_gets_the_failure_and_the_next_one_a_new_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = SharedTasks[str, int]("work")
    work = Counted(ValueError("broken"))
    work.released.set()
    results = await asyncio.gather(
        *(shared.run("a", work.run) for _ in range(2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [ValueError, ValueError]
    work.failure = None
    assert await shared.run("a", work.run) == 2
    assert not caplog.records


async def test_the_end_of_shared_tasks_is_not_the_cancellation_of_their_callers() -> None:
    shared = SharedTasks[str, int]("work")
    async with TaskScope() as callers:
        waiting = callers.spawn(shared.run("a", Counted().run), name="caller", is_awaited=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await shared.close()
        with pytest.raises(ScopeClosed, match="work: closed"):
            await waiting
    with pytest.raises(ScopeClosed):
        await shared.run("a", Counted().run)


async def test_a_caller_cancelled_with_the_task_is_cancelled() -> None:
    shared = SharedTasks[str, int]("work")
    async with TaskScope() as callers:
        waiting = callers.spawn(shared.run("a", Counted().run), name="caller")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        shared.cancel()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
