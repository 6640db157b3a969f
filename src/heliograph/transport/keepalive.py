"""Keep-alive of a client: PING on an idle connection, until too many get no answer."""

import asyncio
from collections.abc import Awaitable, Callable

from heliograph.tasks import TaskScope
from heliograph.transport.connection import BlockConnection
from heliograph.transport.errors import ClientError, RequestTimeout

__all__ = ["KeepAlive"]


class KeepAlive:
    """Call `ping` whenever nothing arrived for `interval` seconds.

    After `failures` timeouts in a row the connection is aborted. An error is an answer too.
    """

    def __init__(
        self,
        connection: BlockConnection,
        ping: Callable[[], Awaitable[object]],
        interval: float,
        failures: int,
    ) -> None:
        self.missed = 0
        """Number of pings without an answer in a row."""
        self._connection = connection
        self._send_ping = ping
        self._interval = interval
        self._failures = failures
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pings = TaskScope()
        self._is_stopped = False

    def start(self) -> None:
        self._check_after(self._interval)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._pings.cancel()

    def _check_after(self, wait: float) -> None:
        if not self._is_stopped:
            self._timer = self._loop.call_later(wait, self._ping_if_idle)

    def _ping_if_idle(self) -> None:
        idle = self._loop.time() - self._connection.received_at
        wait = self._interval - idle
        if wait > 0:
            self.missed = 0
            self._check_after(wait)
        else:
            self._pings.spawn(self._ping(), name="keep-alive")

    async def _ping(self) -> None:
        try:
            await self._send_ping()
        except RequestTimeout:
            self.missed += 1
            if self.missed >= self._failures:
                self._connection.abort(TimeoutError("the router does not answer"))
                return
        except ClientError:
            self.missed = 0  # an answer all the same, unless there is no connection
        else:
            self.missed = 0
        self._check_after(self._interval)
