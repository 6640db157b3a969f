"""Link data of queues: LSET, LDEL, LKEY, LGET.

A queue may have one link: an ID, fixed data and user data. The data is opaque to the router. It is
read from the store for each use, because it is too large to cache.
"""

from heliograph.smp.clients.clients import SmpClient
from heliograph.smp.commands.queues import QueueCommands
from heliograph.smp.context import CommandContext, Requester
from heliograph.smp.store.changes import Peeked
from heliograph.smp.store.records import LinkRecord, QueueRecord, StoredLinkData
from heliograph.smp.store.store import EntityKind
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpResponse

OK = smp.OK()
AUTH = smp.ERR(ErrorCode.AUTH)


class LinkCommands:
    def __init__(self, context: CommandContext, queues: QueueCommands) -> None:
        self._context = context
        self._queues = queues

    def lset(
        self, client: SmpClient, request: Request[smp.LSET], queue: QueueRecord
    ) -> SmpResponse | None:
        context, command = self._context, request.command
        link = LinkRecord.of(command.link_id, command.fixed_data)
        if (
            queue.is_secured_messaging
            or (queue.link is not None and queue.link != link)
            or not context.queues.is_free((EntityKind.LINK, command.link_id), queue)
        ):
            return context.answer(client, request, queue, AUTH)
        context.queues.set_link(queue, link)
        data = StoredLinkData(command.fixed_data, command.user_data)
        context.store.changes.links[queue.recipient_id] = data
        context.change(queue)
        return context.answer_when_durable(client, request, OK)

    def ldel(
        self, client: SmpClient, request: Request[smp.LDEL], queue: QueueRecord
    ) -> SmpResponse | None:
        if queue.link is None:
            return self._context.answer(client, request, queue, OK)
        self._context.delete_link(queue)
        return self._context.answer_when_durable(client, request, OK)

    def lkey(
        self, client: Requester, request: Request[smp.LKEY], queue: QueueRecord
    ) -> SmpResponse | None:
        self._queues.secure(queue, request.command.sender_key)
        return self._answer_with_link(client, request, queue)

    def lget(
        self, client: Requester, request: Request[smp.LGET], queue: QueueRecord
    ) -> SmpResponse | None:
        return self._answer_with_link(client, request, queue)

    def _answer_with_link(
        self,
        client: Requester,
        request: Request[smp.LKEY] | Request[smp.LGET],
        queue: QueueRecord,
    ) -> SmpResponse | None:
        context = self._context

        def answer(peeked: Peeked) -> None:
            data = peeked.links.get(queue.recipient_id)
            link = AUTH if data is None else smp.LNK(queue.sender_id, data.fixed, data.user)
            context.outgoing.answer(client, request, link)

        context.store.changes.link_peeks.add(queue.recipient_id)
        return context.then(client, request, answer)
