"""The second stage, at a notification router: SNEW, SCHK and SDEL."""

from collections.abc import Callable, Sequence

from heliograph.agent.notifications.context import NtfContext, failure_of, notified_queues
from heliograph.agent.notifications.due_work import DueWork, WakeRouter, WorkItem, WorkResult
from heliograph.agent.notifications.records import NtfSubscription, NtfToken, SubAction
from heliograph.agent.notifications.subscription import (
    ActionFailure,
    ActionOutcome,
    Done,
    NtfSubscriptionCreated,
    StateIs,
)
from heliograph.db.dialects import Transaction
from heliograph.transport.client import ClientRequest
from heliograph.transport.errors import ClientError
from heliograph.wire import ntf
from heliograph.wire.addresses import ServerAddress, SMPQueueNtf

Response = ntf.IDSUB | ntf.SUB | ntf.OK


class SubscriptionWork(DueWork):
    """The second stage. `suspect` is called when an answer means that the token may be lost."""

    column = "ntf"
    actions = (SubAction.NTF_DELETE, SubAction.NTF_CREATE, SubAction.NTF_CHECK)

    def __init__(
        self,
        context: NtfContext,
        address: ServerAddress,
        wake: WakeRouter,
        suspect: Callable[[], None],
    ) -> None:
        super().__init__(context, address, wake)
        self._suspect = suspect

    def _serves(self, token: NtfToken | None) -> bool:
        return token is not None and token.ntf_address == self._address

    def _items(self, tx: Transaction, subs: Sequence[NtfSubscription]) -> list[WorkItem]:
        creates = [sub.conn_id for sub in subs if sub.action is SubAction.NTF_CREATE]
        found = notified_queues(tx, self._context.store.vault, creates)
        return [WorkItem(sub, found.get(sub.conn_id)) for sub in subs]

    async def _ask(self, items: Sequence[WorkItem], token: NtfToken | None) -> Sequence[WorkResult]:
        requests = [_request(item, token) for item in items]
        needed = [request for request in requests if request is not None]
        answers: list[Response | ClientError] = []
        if needed:
            try:
                client = await self._context.clients.ntf(self._address)
                answers = await client.request_many(needed)
            except ClientError as exc:
                answers = [exc for _ in needed]
        remaining = iter(answers)
        outcomes = [
            _outcome_without_request(item.sub)
            if request is None
            else _outcome(item, next(remaining))
            for item, request in zip(items, requests, strict=True)
        ]
        if ActionFailure.AUTH in outcomes:
            self._suspect()
        return list(map(WorkResult, items, outcomes))


def _request(item: WorkItem, token: NtfToken | None) -> ClientRequest[Response] | None:
    """Return the command, or None if there is nothing to send."""
    sub, queue = item
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
    if sub.action is SubAction.NTF_CHECK:
        return ClientRequest(ntf.SCHK(), sub.subscription_id, key)
    return ClientRequest(ntf.SDEL(), sub.subscription_id, key)


def _outcome_without_request(sub: NtfSubscription) -> ActionOutcome:
    """Return the outcome without a request, as the router would answer it."""
    match sub.action:
        case SubAction.NTF_DELETE:
            return Done.DELETED
        case SubAction.NTF_CHECK:
            return ActionFailure.AUTH
        case _:
            return ActionFailure.NO_QUEUE


def _outcome(item: WorkItem, answer: Response | ClientError) -> ActionOutcome:
    match item.sub.action, answer:
        case _, ClientError():
            return failure_of(answer)
        case SubAction.NTF_CREATE, ntf.IDSUB():
            return NtfSubscriptionCreated(answer.subscription_id)
        case SubAction.NTF_CHECK, ntf.SUB():
            return StateIs(answer.status.state)
        case SubAction.NTF_DELETE, ntf.OK():
            return Done.DELETED
    return ActionFailure.REFUSED
