"""Context managers that close what they opened."""

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, Protocol, Self, TypeVar

__all__ = ["Closing", "Opening", "opening"]


class Closable(Protocol):
    async def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=Closable)
_Arguments = ParamSpec("_Arguments")


class Closing:
    """Base class: leaving the context of an object closes it."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Opening(Generic[_Opened]):
    """Something that is not open yet.

    Await it for an object that you close yourself, or enter it: leaving closes the object.
    """

    def __init__(self, open: Callable[[], Coroutine[object, None, _Opened]]) -> None:
        self._open = open
        self._opened: _Opened | None = None

    def __await__(self) -> Generator[object, None, _Opened]:
        return self._open().__await__()

    async def __aenter__(self) -> _Opened:
        self._opened = await self
        return self._opened

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


def opening(
    function: Callable[_Arguments, Coroutine[object, None, _Opened]],
) -> Callable[_Arguments, Opening[_Opened]]:
    """Let `async with f(...)` close what the coroutine function `f` returns."""

    @wraps(function)
    def open(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Opening[_Opened]:
        return Opening(lambda: function(*args, **kwargs))

    return open
