"""Notice connections that the peer reset, where a stack does not.

libuv stops watching a socket once it reports an error. aiofastnet then reads what had arrived, and
waits for an end that is never reported: a peer that sends a byte and resets the connection would
leak it. The kernel reports errors to a second watcher, which asks for nothing else.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable
from weakref import WeakKeyDictionary

GRACE_SECONDS = 0.5
"""Time for the stack itself to read what arrived before the reset, and to notice."""


class Hangups:
    """The sockets of one event loop that are watched, and what to call when one is reset."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._ready)

    def watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        # Errors and hang-ups are reported without being asked for; edge-triggered, only once.
        self._epoll.register(descriptor, select.EPOLLET)
        self._callbacks[descriptor] = callback

    def forget(self, descriptor: int) -> None:
        """Call it before the socket is closed: a copy of it would keep it watched."""
        if self._callbacks.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    @property
    def is_idle(self) -> bool:
        return not self._callbacks

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _ready(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            self._loop.call_later(
                GRACE_SECONDS, self._report, descriptor, self._callbacks.get(descriptor)
            )

    def _report(self, descriptor: int, callback: Callable[[], object] | None) -> None:
        if callback is not None and self._callbacks.get(descriptor) is callback:
            callback()


_hangups: WeakKeyDictionary[asyncio.AbstractEventLoop, Hangups] = WeakKeyDictionary()


def watch(descriptor: int, callback: Callable[[], object]) -> None:
    """Call ``callback`` once the connection of this socket is gone, unless forgotten before."""
    if not hasattr(select, "epoll"):
        return  # libuv has another way to wait there, without this fault
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # out of descriptors: serving goes on unwatched
        if loop not in _hangups:
            _hangups[loop] = Hangups(loop)
        _hangups[loop].watch(descriptor, callback)


def forget(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    hangups = _hangups.get(loop)
    if hangups is not None:
        hangups.forget(descriptor)
        if hangups.is_idle:
            hangups.close()
            del _hangups[loop]
