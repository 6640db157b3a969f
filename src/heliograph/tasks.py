"""Background tasks that have an owner: named, logged on failure, cancelled and awaited at close."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Generic, TypeVar

from heliograph.opening import Closing

__all__ = ["ScopeClosed", "SharedTasks", "TaskScope", "is_cancelled"]

logger = logging.getLogger(__name__)

_Key = TypeVar("_Key", bound=Hashable)
_Result = TypeVar("_Result")

CANCEL_GRACE_SECONDS = 5.0
"""Seconds that `TaskScope.close` waits for cancelled tasks."""


def is_cancelled() -> bool:
    """Return whether the running task was cancelled.

    For tasks that handle failures and go on: `asyncio.TaskGroup` raises a failure instead of a
    cancellation of the same moment.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class TaskScope(Closing):
    """The background tasks of one owner.

    Unlike `asyncio.TaskGroup`, a task that fails is logged and leaves its siblings running, and the
    end of the scope cancels what still runs.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._tasks)

    def __bool__(self) -> bool:
        return True  # an idle scope is still a scope

    def __iter__(self) -> Iterator[asyncio.Task[object]]:
        return iter(tuple(self._tasks))

    def spawn(
        self, work: Coroutine[object, object, _Result], *, name: str, is_awaited: bool = False
    ) -> "asyncio.Task[_Result]":
        """Run ``work`` in the background; once the scope is closed, cancel it at once.

        A failure is logged, unless it ``is_awaited``: then it is for those who await the task.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._awaited_done if is_awaited else self._done)
        if self._is_closed:
            task.cancel()
        return task

    async def wait(self) -> None:
        """Wait until every task has ended by itself."""
        while tasks := self._others():
            await asyncio.wait(tasks)

    def cancel(self) -> None:
        """Cancel every task, without waiting, and each that is spawned later.

        A task of the scope may call this: it is not cancelled itself.
        """
        self._is_closed = True
        for task in self._others():
            task.cancel()

    async def close(self, grace: float = CANCEL_GRACE_SECONDS) -> None:
        """Cancel every task, as `cancel` does, and wait up to ``grace`` seconds for their end."""
        deadline = asyncio.get_running_loop().time() + grace
        self.cancel()
        while tasks := self._others():  # a cancelled task may spawn others while it ends
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                names = ", ".join(sorted(task.get_name() for task in tasks))
                logger.warning("tasks still run %g s after they were cancelled: %s", grace, names)
                return
            await asyncio.wait(tasks, timeout=left)

    def _others(self) -> "set[asyncio.Task[object]]":
        return self._tasks - {asyncio.current_task()}

    def _done(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            logger.error("task %s failed", task.get_name(), exc_info=failure)

    def _awaited_done(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # or asyncio would log it when the last caller was cancelled


class ScopeClosed(Exception):
    """The task was cancelled by the end of its scope."""


class SharedTasks(Closing, Generic[_Key, _Result]):
    """One task per key at a time, for all callers that need its result ("single flight").

    A caller that is cancelled does not cancel the task, which the others wait for.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._scope = TaskScope()
        self._running: dict[_Key, asyncio.Task[_Result]] = {}

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._running)

    def __contains__(self, key: _Key) -> bool:
        """Return whether the task of ``key`` runs."""
        return key in self._running

    async def run(
        self, key: _Key, work: Callable[[], Coroutine[object, object, _Result]]
    ) -> _Result:
        """Return the result of the task of ``key``; call ``work`` to start it if none runs.

        Raises what the task raised, or `ScopeClosed`.
        """
        task = self._running.get(key)
        if task is None:
            task = self._scope.spawn(work(), name=self._name, is_awaited=True)
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise ScopeClosed(f"{self._name}: closed") from None
            raise

    def cancel(self) -> None:
        """Cancel every task, without waiting."""
        self._scope.cancel()

    async def close(self) -> None:
        """Cancel every task and wait for their end."""
        await self._scope.close()
