"""The first stage, at a messaging router: NKEY and NDEL."""

from collections.abc import Sequence
from typing import NamedTuple

from heliograph.agent.notifications.context import failure_of, notified_queues
from heliograph.agent.notifications.due_work import DueWork, WorkItem, WorkResult
from heliograph.agent.notifications.records import NtfSubscription, NtfToken, SubAction
from heliograph.agent.notifications.subscription import ActionFailure, Done, KeySet
from heliograph.agent.records import NotifierCredentials
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.transport.client import ClientRequest
from heliograph.transport.errors import ClientError
from heliograph.wire import smp
from heliograph.wire.keys import Algorithm

Answer = smp.NID | smp.OK | ClientError


class _Asked(NamedTuple):
    item: WorkItem
    request: ClientRequest[smp.NID | smp.OK]
    auth: KeyPair
    dh: KeyPair


class KeyWork(DueWork):
    column = "smp"
    actions = (SubAction.SMP_DELETE, SubAction.SMP_KEY)

    def _items(self, tx: Transaction, subs: Sequence[NtfSubscription]) -> list[WorkItem]:
        """Skip queues at another router: the supervisor begins those again."""
        found = notified_queues(tx, self._context.store.vault, [sub.conn_id for sub in subs])
        here = {
            conn_id: queue
            for conn_id, queue in found.items()
            if queue.address.fingerprint == self._address.fingerprint
        }
        return [WorkItem(sub, here.get(sub.conn_id)) for sub in subs]

    async def _ask(self, items: Sequence[WorkItem], token: NtfToken | None) -> Sequence[WorkResult]:
        missing = [WorkResult(item, ActionFailure.NO_QUEUE) for item in items if item.queue is None]
        asked = [_ask(item) for item in items if item.queue is not None]
        if not asked:
            return missing
        address = next(item.queue.address for item in items if item.queue is not None)
        try:
            client = await self._context.clients.smp(address)
        except ClientError as exc:
            return [*missing, *(WorkResult(each.item, failure_of(exc)) for each in asked)]
        answers = await client.request_many(each.request for each in asked)
        return [*missing, *map(_result, asked, answers)]


def _ask(item: WorkItem) -> _Asked:
    if item.queue is None:
        raise ValueError("NKEY and NDEL need a queue")
    place = item.queue.rcv_id, item.queue.recipient_key
    auth, shared = generate_key_pair(Algorithm.ED25519), generate_key_pair(Algorithm.X25519)
    request: ClientRequest[smp.NID | smp.OK] = ClientRequest(smp.NDEL(), *place)
    if item.sub.action is SubAction.SMP_KEY:
        request = ClientRequest(smp.NKEY(auth.public, shared.public), *place)
    return _Asked(item, request, auth, shared)


def _result(asked: _Asked, answer: Answer) -> WorkResult:
    item = asked.item
    match item.sub.action, answer:
        case _, ClientError():
            return WorkResult(item, failure_of(answer))
        case SubAction.SMP_DELETE, smp.OK():
            return WorkResult(item, Done.DELETED)
        case SubAction.SMP_KEY, smp.NID():
            try:
                secret = dh(answer.dh_key, asked.dh.private)
            except CryptoError:
                return WorkResult(item, ActionFailure.REFUSED)
            notifier = NotifierCredentials(answer.notifier_id, asked.auth.private, secret)
            return WorkResult(item, KeySet(answer.notifier_id), notifier)
    return WorkResult(item, ActionFailure.REFUSED)
