"""The second stage, at one notification router: SNEW, SCHK and SDEL for what is due, in batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

from heliograph.agent import ntf_store
from heliograph.agent.ntf_context import NtfContext, failure_of, notified_queues
from heliograph.agent.ntf_records import NtfSubscription, NtfToken, SubAction
from heliograph.agent.ntf_subscription import (
    Created,
    Done,
    Failure,
    Outcome,
    StateIs,
    after,
    allowed,
)
from heliograph.agent.records import RcvQueue
from heliograph.agent.workers import Report
from heliograph.db.dialects import Transaction
from heliograph.transport.client import ClientRequest
from heliograph.transport.errors import ClientError
from heliograph.wire import ntf
from heliograph.wire.addresses import ServerAddress, SMPQueueNtf

Kick = Callable[[ServerAddress], None]

_ACTIONS = (SubAction.NTF_DELETE, SubAction.NTF_CREATE, SubAction.NTF_CHECK)


class _Task(NamedTuple):
    sub: NtfSubscription
    request: ClientRequest | None
    """None: there is nothing to ask."""


class SubWork:
    """`kick` wakes the worker of a messaging router; `suspect` says that the token may be lost."""

    def __init__(
        self,
        context: NtfContext,
        address: ServerAddress,
        kick: Kick,
        suspect: Callable[[], None],
    ) -> None:
        self._context = context
        self._address = address
        self._kick = kick
        self._suspect = suspect

    async def perform(self, limit: int) -> Report:
        async with self._context.store.locks.hold(f"ntf subs {self._address.fingerprint.hex()}"):
            return await self._perform(limit)

    async def _perform(self, limit: int) -> Report:
        tasks, token, next_due = await self._context.store.read(lambda tx: self._due(tx, limit))
        if not tasks:
            now = self._context.clock()
            return Report(next_in=None if next_due is None else next_due - now)
        outcomes = await self._ask(tasks, token)
        pairs = list(zip(tasks, outcomes, strict=True))
        routers = await self._context.store.write(lambda tx: self._settle(tx, pairs, token))
        for address in routers:
            self._kick(address)
        if Failure.AUTH in outcomes:
            self._suspect()
        return Report(len(tasks), Failure.UNREACHABLE in outcomes)

    def _due(
        self, tx: Transaction, limit: int
    ) -> tuple[list[_Task], NtfToken | None, float | None]:
        context, vault = self._context, self._context.store.vault
        token = ntf_store.load_token(tx, vault)
        at_home = token is not None and token.ntf_address == self._address
        actions = allowed(_ACTIONS, token if at_home else None)
        subs = ntf_store.subscriptions_due(
            tx, "ntf", self._address, actions, context.settings.intervals, context.clock(), limit
        )
        if not subs:
            return [], token, ntf_store.next_due(tx, "ntf", self._address, actions)
        creates = [sub.conn_id for sub in subs if sub.action is SubAction.NTF_CREATE]
        found = notified_queues(tx, vault, creates)
        tasks = [_Task(sub, _request(sub, found.get(sub.conn_id), token)) for sub in subs]
        return tasks, token, None

    async def _ask(self, tasks: list[_Task], token: NtfToken | None) -> list[Outcome]:
        """The outcome of each."""
        requests = [task.request for task in tasks if task.request is not None]
        answers: list[Any] = []
        if requests:
            try:
                client = await self._context.clients.ntf(self._address)
                answers = await client.request_many(requests)
            except ClientError as exc:
                answers = [exc] * len(requests)
        remaining = iter(answers)
        return [
            _unasked(task.sub) if task.request is None else _outcome(task.sub, next(remaining))
            for task in tasks
        ]

    def _settle(
        self, tx: Transaction, pairs: list[tuple[_Task, Outcome]], token: NtfToken | None
    ) -> set[ServerAddress]:
        """Gives the messaging routers that have something to do now."""
        now, intervals = self._context.clock(), self._context.settings.intervals
        settled = [
            (task.sub, after(task.sub, outcome, token, intervals, now)) for task, outcome in pairs
        ]
        ntf_store.settle(tx, settled)
        return {
            changed.smp_address
            for _, changed in settled
            if changed is not None and changed.action is not None and changed.action.at_smp
        }


def _request(
    sub: NtfSubscription, queue: RcvQueue | None, token: NtfToken | None
) -> ClientRequest | None:
    if token is None or token.token_id is None:
        return None
    key = token.auth_keys.private
    if sub.action is SubAction.NTF_CREATE:
        notifier = None if queue is None else queue.notifier
        if queue is None or notifier is None or notifier.notifier_id != sub.notifier_id:
            return None
        address = SMPQueueNtf(queue.address.without_password(), notifier.notifier_id)
        return ClientRequest(ntf.SNEW(token.token_id, address, notifier.auth_key), b"", key)
    if sub.subscription_id is None or sub.token_id != token.token_id:
        return None
    command = ntf.SCHK() if sub.action is SubAction.NTF_CHECK else ntf.SDEL()
    return ClientRequest(command, sub.subscription_id, key)


def _unasked(sub: NtfSubscription) -> Outcome:
    """A check without a subscription of this token finds none, as the router would say."""
    match sub.action:
        case SubAction.NTF_DELETE:
            return Done.DELETED
        case SubAction.NTF_CHECK:
            return Failure.AUTH
        case _:
            return Failure.NO_QUEUE


def _outcome(sub: NtfSubscription, answer: Any) -> Outcome:
    if isinstance(answer, Exception):
        return failure_of(answer)
    match sub.action, answer:
        case SubAction.NTF_CREATE, ntf.IDSUB():
            return Created(answer.subscription_id)
        case SubAction.NTF_CHECK, ntf.SUB():
            return StateIs(answer.status.state)
        case SubAction.NTF_DELETE, ntf.OK():
            return Done.DELETED
        case _:
            return Failure.REFUSED
