"""The first stage, at one messaging router: NKEY and NDEL for what is due, in batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

from heliograph.agent import ntf_store, queues
from heliograph.agent.ntf_context import NtfContext, failure_of, notified_queues
from heliograph.agent.ntf_records import NtfSubscription, NtfToken, SubAction
from heliograph.agent.ntf_subscription import (
    Done,
    Failure,
    KeySet,
    Outcome,
    after,
    allowed,
)
from heliograph.agent.records import Notifier, RcvQueue
from heliograph.agent.workers import Report
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.transport.client import ClientRequest
from heliograph.transport.errors import ClientError
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.keys import Algorithm

Kick = Callable[[ServerAddress], None]

_ACTIONS = (SubAction.SMP_DELETE, SubAction.SMP_KEY)


class _Task(NamedTuple):
    sub: NtfSubscription
    queue: RcvQueue | None
    auth: KeyPair
    dh: KeyPair


class _Result(NamedTuple):
    task: _Task
    outcome: Outcome
    notifier: Notifier | None = None


class KeyWork:
    """`kick` wakes the worker of a notification router that has something to do now."""

    def __init__(self, context: NtfContext, address: ServerAddress, kick: Kick) -> None:
        self._context = context
        self._address = address
        self._kick = kick

    async def perform(self, limit: int) -> Report:
        # Not beside another process: the router keeps the keys that came last.
        async with self._context.store.locks.hold(f"smp keys {self._address.fingerprint.hex()}"):
            return await self._perform(limit)

    async def _perform(self, limit: int) -> Report:
        tasks, token, next_due = await self._context.store.read(lambda tx: self._due(tx, limit))
        if not tasks:
            now = self._context.clock()
            return Report(next_in=None if next_due is None else next_due - now)
        results = await self._ask(tasks)
        routers = await self._context.store.write(lambda tx: self._settle(tx, results, token))
        for address in routers:
            self._kick(address)
        return Report(len(tasks), any(result.outcome is Failure.UNREACHABLE for result in results))

    def _due(
        self, tx: Transaction, limit: int
    ) -> tuple[list[_Task], NtfToken | None, float | None]:
        context, vault = self._context, self._context.store.vault
        token = ntf_store.load_token(tx, vault)
        actions = allowed(_ACTIONS, token)
        subs = ntf_store.subscriptions_due(
            tx, "smp", self._address, actions, context.settings.intervals, context.clock(), limit
        )
        if not subs:
            return [], token, ntf_store.next_due(tx, "smp", self._address, actions)
        found = notified_queues(tx, vault, [sub.conn_id for sub in subs])
        return [self._task(sub, found.get(sub.conn_id)) for sub in subs], token, None

    def _task(self, sub: NtfSubscription, queue: RcvQueue | None) -> _Task:
        """A queue at another router is not this worker's: the supervisor is to begin again."""
        if queue is not None and queue.address.fingerprint != self._address.fingerprint:
            queue = None
        auth = generate_key_pair(Algorithm.ED25519)
        return _Task(sub, queue, auth, generate_key_pair(Algorithm.X25519))

    async def _ask(self, tasks: list[_Task]) -> list[_Result]:
        missing = [_Result(task, Failure.NO_QUEUE) for task in tasks if task.queue is None]
        asked = [task for task in tasks if task.queue is not None]
        if not asked:
            return missing
        try:
            client = await self._context.clients.smp(_queue(asked[0]).address)
        except ClientError as exc:
            failure = failure_of(exc)
            return [*missing, *(_Result(task, failure) for task in asked)]
        answers = await client.request_many([_request(task) for task in asked])
        return [*missing, *map(_result, asked, answers)]

    def _settle(
        self, tx: Transaction, results: list[_Result], token: NtfToken | None
    ) -> set[ServerAddress]:
        """Gives the notification routers that have something to do now."""
        context = self._context
        now, intervals = context.clock(), context.settings.intervals
        settled, routers = [], set()
        for result in results:
            sub, queue = result.task.sub, result.task.queue
            if not ntf_store.is_current(tx, sub):
                continue
            changed = after(sub, result.outcome, token, intervals, now)
            settled.append((sub, changed))
            deleted = sub.action is SubAction.SMP_DELETE and (
                changed is None or changed.action is not SubAction.SMP_DELETE
            )
            if queue is not None and (deleted or result.notifier is not None):
                queues.set_notifier(tx, context.store.vault, queue.queue_id, result.notifier)
            if changed is not None and changed.action is not None and not changed.action.at_smp:
                routers.add(changed.ntf_address)
        ntf_store.settle(tx, settled)
        return routers


def _queue(task: _Task) -> RcvQueue:
    if task.queue is None:
        raise ValueError("a task without a queue cannot be asked for")
    return task.queue


def _request(task: _Task) -> ClientRequest:
    queue = _queue(task)
    command: Any = smp.NDEL()
    if task.sub.action is SubAction.SMP_KEY:
        command = smp.NKEY(task.auth.public, task.dh.public)
    return ClientRequest(command, queue.rcv_id, queue.recipient_key)


def _result(task: _Task, answer: Any) -> _Result:
    if isinstance(answer, Exception):
        return _Result(task, failure_of(answer))
    if task.sub.action is SubAction.SMP_DELETE and isinstance(answer, smp.OK):
        return _Result(task, Done.DELETED)
    if task.sub.action is SubAction.SMP_KEY and isinstance(answer, smp.NID):
        try:
            secret = dh(answer.dh_key, task.dh.private)
        except CryptoError:
            return _Result(task, Failure.REFUSED)
        notifier = Notifier(answer.notifier_id, task.auth.private, secret)
        return _Result(task, KeySet(answer.notifier_id), notifier)
    return _Result(task, Failure.REFUSED)
