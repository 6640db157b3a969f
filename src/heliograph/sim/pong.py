"""A router of either protocol that serves only PING and prohibits all other commands."""

from typing import TypeVar

from heliograph.transport.handshake import ServiceRequest
from heliograph.transport.server import Answer, ServerConnection
from heliograph.wire.errors import ErrorCode, TransportError
from heliograph.wire.requests import Request
from heliograph.wire.table import PING, PONG

_Command = TypeVar("_Command")


class PongRouter:
    """A minimal router for a listener, to test the transport alone."""

    def connected(self, connection: ServerConnection) -> None:
        pass

    def received(self, connection: ServerConnection, requests: list[Request[_Command]]) -> None:
        prohibited = connection.listener.error(ErrorCode.CMD_PROHIBITED)
        connection.answer(
            [
                Answer(
                    request.corr_id,
                    request.entity_id,
                    PONG() if isinstance(request.command, PING) else prohibited,
                )
                for request in requests
            ]
        )

    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None:
        connection.answer_service(TransportError.HANDSHAKE_BAD_SERVICE)

    def disconnected(self, connection: ServerConnection) -> None:
        pass

    def writable(self, connection: ServerConnection) -> None:
        pass

    def may_disconnect(self, connection: ServerConnection) -> bool:
        return True
