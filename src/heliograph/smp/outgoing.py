"""What goes to clients, gathered so that it leaves in as few blocks as hold it."""

import logging
from typing import Any

from heliograph.smp.clients import Client
from heliograph.transport.server import Answer
from heliograph.wire.requests import Request

logger = logging.getLogger(__name__)


class Outgoing:
    """Answers and pushes since the last flush, in order."""

    def __init__(self) -> None:
        self._messages: dict[Client, list[Answer]] = {}
        self._answered: dict[Client, int] = {}

    def answer(self, client: Client, request: Request, message: Any) -> None:
        self._push(client, Answer(request.corr_id, request.entity_id, message))
        answered = self._answered
        answered[client] = answered.get(client, 0) + 1

    def push(self, client: Client, entity_id: bytes, message: Any) -> None:
        self._push(client, Answer(b"", entity_id, message))

    def _push(self, client: Client, message: Answer) -> None:
        messages = self._messages.get(client)
        if messages is None:
            self._messages[client] = [message]
        else:
            messages.append(message)

    def pending(self, client: Client) -> int:
        return len(self._messages.get(client, ()))

    def flush(self) -> None:
        messages, answered = self._messages, self._answered
        self._messages, self._answered = {}, {}
        for client, items in messages.items():
            try:
                client.connection.send_all(items, answered.get(client, 0))
            except Exception as exc:
                logger.exception("sending to a client failed")
                client.connection.abort(exc)
