"""From the content of a block to the commands, or responses, in it.

A router answers each `Failure` as it is and serves the rest: one bad transmission does not spoil
its neighbours.
"""

from dataclasses import dataclass
from typing import Any

from heliograph.wire.errors import ErrorType, WireError
from heliograph.wire.table import Table, check_credentials
from heliograph.wire.transmissions import (
    Session,
    TransmissionError,
    decode_transmission,
    encode_transmission,
    unpack,
)


@dataclass(frozen=True, slots=True)
class Request:
    """A command that is well formed and has the credentials its kind needs, yet unverified."""

    corr_id: bytes
    entity_id: bytes
    command: Any
    auth: bytes
    service_signature: bytes | None
    authorized: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A response, or with an empty `corr_id` a push."""

    corr_id: bytes
    entity_id: bytes
    message: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """A transmission that was malformed, and the error that answers it."""

    corr_id: bytes
    entity_id: bytes
    error: ErrorType


def decode_requests(session: Session, commands: Table, content: bytes) -> list[Request | Failure]:
    """What a router received."""
    try:
        transmissions = unpack(session, content)
    except TransmissionError as exc:
        return [Failure(b"", b"", exc.error)]
    return [_decode_request(session, commands, data) for data in transmissions]


def decode_replies(session: Session, responses: Table, content: bytes) -> list[Reply | Failure]:
    """What a client received."""
    try:
        transmissions = unpack(session, content)
    except TransmissionError as exc:
        return [Failure(b"", b"", exc.error)]
    return [_decode_reply(session, responses, data) for data in transmissions]


def encode_reply(
    session: Session, responses: Table, corr_id: bytes, entity_id: bytes, message: Any
) -> bytes:
    command = responses.encode(message, session.version)
    return encode_transmission(session, corr_id, entity_id, command)


def _decode_request(session: Session, commands: Table, data: bytes) -> Request | Failure:
    try:
        raw = decode_transmission(session, data)
    except TransmissionError as exc:
        return Failure(exc.corr_id, b"", exc.error)
    try:
        command = commands.decode(raw.command, session.version)
        check_credentials(commands.credentials(command), raw.auth, raw.entity_id)
    except WireError as exc:
        return Failure(raw.corr_id, raw.entity_id, exc.error)
    return Request(
        raw.corr_id, raw.entity_id, command, raw.auth, raw.service_signature, raw.authorized
    )


def _decode_reply(session: Session, responses: Table, data: bytes) -> Reply | Failure:
    try:
        raw = decode_transmission(session, data)
    except TransmissionError as exc:
        return Failure(exc.corr_id, b"", exc.error)
    try:
        message = responses.decode(raw.command, session.version)
        check_credentials(responses.credentials(message), b"", raw.entity_id)
    except WireError as exc:
        return Failure(raw.corr_id, raw.entity_id, exc.error)
    return Reply(raw.corr_id, raw.entity_id, message)
