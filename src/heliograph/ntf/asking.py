"""NSUB for many queues: how they are asked for, and what the answers say of subscriptions."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from heliograph.ntf.book import Status
from heliograph.ntf.records import QueueKey
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.errors import (
    ClientError,
    Disconnected,
    HandshakeFailed,
    RequestRefused,
    RequestTimeout,
)
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode, encode_error
from heliograph.wire.tokens import SubscriptionState, SubscriptionStatus

ACTIVE = SubscriptionStatus(SubscriptionState.ACTIVE)
PARTS = 4

_NSUB = smp.NSUB()


@dataclass(slots=True)
class Findings:
    """What a messaging router said of queues; `associated` are active, too."""

    active: list[QueueKey] = field(default_factory=list)
    associated: list[QueueKey] = field(default_factory=list)
    others: list[tuple[QueueKey, SubscriptionStatus]] = field(default_factory=list)
    unanswered: int = 0

    def note(self, queues: Sequence[QueueKey], answers: Sequence[Any]) -> None:
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, smp.SOK):
                (self.associated if answer.service_id else self.active).append(queue)
                continue
            status = status_of(answer)
            if status is None:
                self.unanswered += 1
            elif status is ACTIVE:
                self.active.append(queue)
            else:
                self.others.append((queue, status))

    @property
    def subscribed(self) -> int:
        return len(self.active) + len(self.associated)

    @property
    def mostly_associated(self) -> bool:
        return len(self.associated) > len(self.active)

    def statuses(self, *, confirming: bool) -> Iterator[Status]:
        """Of all; if most are to be confirmed together, of those that this does not concern."""
        for queue, status in self.others:
            yield queue.notifier_id, status, False
        for queues, associated in ((self.active, False), (self.associated, True)):
            confirmed = confirming and associated is self.mostly_associated
            for queue in queues:
                if not (confirmed and queue.is_inactive):
                    yield queue.notifier_id, ACTIVE, associated


class Asking:
    """On one connection. A batch is under way in parts: some are answered, the next is made.

    Once something is not answered, no more is asked.
    """

    def __init__(self, client: Client, batch: int) -> None:
        parts = min(PARTS, batch)
        self._client = client
        self._size = batch // parts
        self._slots = asyncio.Semaphore(parts)
        self.is_over = False

    async def ask(self, queues: Sequence[QueueKey]) -> Findings:
        found = Findings()
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(queues), self._size):
                await self._slots.acquire()
                part = queues[start : start + self._size]
                task = group.create_task(self._ask(part, found))
                task.add_done_callback(lambda _: self._slots.release())
        return found

    async def _ask(self, part: Sequence[QueueKey], found: Findings) -> None:
        if self.is_over:
            found.unanswered += len(part)
            return
        answers = await self._client.request_many(
            ClientRequest(_NSUB, queue.notifier_id, queue.notifier_key) for queue in part
        )
        found.note(part, answers)
        if found.unanswered:
            self.is_over = True


def status_of(answer: Any) -> SubscriptionStatus | None:
    """What an answer to NSUB says of the subscription; None if there was no answer."""
    match answer:
        case smp.SOK() | smp.OK():
            return ACTIVE
        case RequestRefused(error=ErrorCode.AUTH):
            return SubscriptionStatus(SubscriptionState.AUTH)
        case RequestRefused(error=ErrorCode.SERVICE):
            return SubscriptionStatus(SubscriptionState.SERVICE)
        case RequestRefused():
            return SubscriptionStatus(
                SubscriptionState.ERR, b"SMP error " + encode_error(answer.error)
            )
        case Disconnected() | RequestTimeout() | HandshakeFailed():
            return None
        case ClientError():
            return SubscriptionStatus(SubscriptionState.ERR, b"ResponseError")
    return SubscriptionStatus(SubscriptionState.ERR, b"UnexpectedResponse")
