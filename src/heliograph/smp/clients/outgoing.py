"""Answers and pushes to clients, collected so that they leave in as few blocks as possible."""

import logging
from typing import Any

from heliograph.smp.clients.clients import SmpClient
from heliograph.smp.clients.forwarded import ForwardedSender
from heliograph.transport.server import Answer
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpResponse

logger = logging.getLogger(__name__)

MAX_BESIDE_MESSAGE = 3
"""So many answers to SUB fit into the block of a message."""

AnyRequest = Request[Any]
"""A request of which only the IDs matter, whatever the command."""

Requester = SmpClient | ForwardedSender
"""The sender of a command: a connected client, or one behind a proxy."""


class ReplyBuffer:
    """Answers and pushes since the last `flush`, in order."""

    def __init__(self) -> None:
        self._messages: dict[SmpClient, list[Answer]] = {}
        self._last: dict[SmpClient, list[Answer]] = {}
        self._ended: list[tuple[SmpClient, list[Answer]]] = []
        self._answered: dict[SmpClient, int] = {}

    def answer(self, client: Requester, request: AnyRequest, message: SmpResponse) -> None:
        if isinstance(client, ForwardedSender):
            message = client.seal(request.corr_id, request.entity_id, message)
            request, client = client.rfwd, client.client
        self._push(client, Answer(request.corr_id, request.entity_id, message))
        answered = self._answered
        answered[client] = answered.get(client, 0) + 1

    def push(self, client: SmpClient, entity_id: bytes, message: SmpResponse) -> None:
        self._push(client, Answer(b"", entity_id, message))

    def push_last(self, client: SmpClient, entity_id: bytes, message: SmpResponse) -> None:
        """Push after all answers, which must not be late because of it."""
        self._last.setdefault(client, []).append(Answer(b"", entity_id, message))

    def _push(self, client: SmpClient, message: Answer) -> None:
        messages = self._messages.get(client)
        if messages is None:
            self._messages[client] = [message]
        else:
            messages.append(message)

    def end_block(self, client: SmpClient) -> None:
        """Send what follows in another block than what the client was sent before."""
        messages = self._messages.pop(client, None)
        if messages is not None:
            self._ended.append((client, messages))

    def pending(self, client: SmpClient) -> int:
        return len(self._messages.get(client, ())) + len(self._last.get(client, ()))

    def flush(self) -> None:
        ended, messages, answered = self._ended, self._messages, self._answered
        last, self._last = self._last, {}
        self._ended, self._messages, self._answered = [], {}, {}
        for client, items in ended:
            self._send(client, items, 0)
        for client, items in messages.items():
            if len(items) <= MAX_BESIDE_MESSAGE:
                items += last.pop(client, ())
            self._send(client, items, answered.get(client, 0))
        for client, items in last.items():
            self._send(client, items, 0)

    def _send(self, client: SmpClient, messages: list[Answer], answered: int) -> None:
        try:
            client.connection.send_all(messages, answered)
        except Exception as exc:
            logger.exception("sending to a client failed")
            client.connection.abort(exc)
