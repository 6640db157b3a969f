"""What waits for answers at a client: one request, or a group that one future and timer serve.

A future and a timer for each of many requests would cost more than the rest of their handling.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from heliograph.transport.errors import ClientError


class Pending(Protocol):
    """One request. Its answer may be a `ClientError`."""

    @property
    def entity_id(self) -> bytes: ...

    def settle(self, answer: Any) -> None: ...


@dataclass(slots=True)
class Single:
    entity_id: bytes
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle

    def settle(self, answer: Any) -> None:
        self.timer.cancel()
        if self.future.done():
            return
        if isinstance(answer, ClientError):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)


@dataclass(slots=True)
class Group:
    """`answers` are complete once `future` is done."""

    corr_ids: list[bytes]
    future: asyncio.Future[None]
    answers: list[Any]
    left: int
    timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, corr_ids: list[bytes], future: asyncio.Future[None]) -> "Group":
        return cls(corr_ids, future, [None] * len(corr_ids), len(corr_ids))

    def settle(self, place: int, answer: Any) -> None:
        self.answers[place] = answer
        self.left -= 1
        if not self.left:
            if self.timer is not None:
                self.timer.cancel()
            if not self.future.done():
                self.future.set_result(None)


@dataclass(slots=True)
class Member:
    """One of a group, and its place there."""

    entity_id: bytes
    group: Group
    place: int

    def settle(self, answer: Any) -> None:
        self.group.settle(self.place, answer)
