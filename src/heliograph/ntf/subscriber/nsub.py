"""NSUB for many queues: send the commands, and turn the answers into subscription statuses."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from heliograph.ntf.store.records import QueueKey
from heliograph.ntf.store.subscriptions.subscription_store import Status
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
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState

ACTIVE = NtfSubStatus(SubscriptionState.ACTIVE)
MAX_REQUESTS_IN_FLIGHT = 4
"""A batch is sent in this many parts: while some are answered, the next is signed."""

_NSUB = smp.NSUB()


@dataclass(slots=True)
class NsubResults:
    """Queues by the answer to their NSUB. `associated` queues are active, too."""

    active: list[QueueKey] = field(default_factory=list)
    associated: list[QueueKey] = field(default_factory=list)
    failed: list[tuple[QueueKey, NtfSubStatus]] = field(default_factory=list)
    unanswered: int = 0

    def add(self, queues: Sequence[QueueKey], answers: Sequence[object]) -> None:
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
                self.failed.append((queue, status))

    @property
    def subscribed(self) -> int:
        return len(self.active) + len(self.associated)

    @property
    def mostly_associated(self) -> bool:
        return len(self.associated) > len(self.active)

    def statuses(self, *, by_range: bool) -> Iterator[Status]:
        """Yield the statuses to write row by row.

        If `by_range`, omit the INACTIVE queues of the larger group (associated or not): one
        statement marks them ACTIVE.
        """
        for queue, status in self.failed:
            yield queue.notifier_id, status, False
        for queues, associated in ((self.active, False), (self.associated, True)):
            is_marked = by_range and associated is self.mostly_associated
            for queue in queues:
                if not (is_marked and queue.is_inactive):
                    yield queue.notifier_id, ACTIVE, associated


class NsubSender:
    """Send NSUB on one connection, several requests in flight.

    Stop sending after the first command without an answer, and once `may_send` returns False.
    """

    def __init__(self, client: Client, batch: int, may_send: Callable[[], bool]) -> None:
        parts = min(MAX_REQUESTS_IN_FLIGHT, batch)
        self._client = client
        self._may_send = may_send
        self._size = batch // parts
        self._slots = asyncio.Semaphore(parts)
        self.has_failed = False

    async def send(self, queues: Sequence[QueueKey]) -> NsubResults:
        results = NsubResults()
        # Not a TaskScope: the tasks end with this call, and the first failure is its own.
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(queues), self._size):
                await self._slots.acquire()
                part = queues[start : start + self._size]
                task = group.create_task(self._send_part(part, results))
                task.add_done_callback(lambda _: self._slots.release())
        return results

    async def _send_part(self, part: Sequence[QueueKey], results: NsubResults) -> None:
        if self.has_failed or not self._may_send():
            self.has_failed = True
            results.unanswered += len(part)
            return
        answers = await self._client.request_many(
            ClientRequest(_NSUB, queue.notifier_id, queue.notifier_key) for queue in part
        )
        results.add(part, answers)
        if results.unanswered:
            self.has_failed = True


def status_of(answer: object) -> NtfSubStatus | None:
    """Return the subscription's status by the answer to NSUB; None if there was no answer."""
    match answer:
        case smp.SOK() | smp.OK():
            return ACTIVE
        case RequestRefused(error=ErrorCode.AUTH):
            return NtfSubStatus(SubscriptionState.AUTH)
        case RequestRefused(error=ErrorCode.SERVICE):
            return NtfSubStatus(SubscriptionState.SERVICE)
        case RequestRefused():
            return NtfSubStatus(SubscriptionState.ERR, b"SMP error " + encode_error(answer.error))
        case Disconnected() | RequestTimeout() | HandshakeFailed():
            return None
        case ClientError():
            return NtfSubStatus(SubscriptionState.ERR, b"ResponseError")
    return NtfSubStatus(SubscriptionState.ERR, b"UnexpectedResponse")
