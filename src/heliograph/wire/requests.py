"""From the content of a block to the commands, or responses, in it.

A router answers each `Failure` as it is and serves the rest: one bad transmission does not spoil
its neighbours.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from heliograph.wire.errors import ErrorType, WireError
from heliograph.wire.table import Table, check_credentials
from heliograph.wire.transmissions import (
    Session,
    TransmissionError,
    decode_transmission,
    encode_transmission,
    unpack,
)


class Request(NamedTuple):
    """A command that is well formed and has the credentials its kind needs, yet unverified."""

    corr_id: bytes
    entity_id: bytes
    command: Any
    auth: bytes
    service_signature: bytes | None
    authorized: bytes


class Reply(NamedTuple):
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
        auth, signature, corr_id, entity_id, raw, authorized = decode_transmission(session, data)
    except TransmissionError as exc:
        return Failure(exc.corr_id, b"", exc.error)
    try:
        command = commands.decode(raw, session.version)
        check_credentials(commands.credentials(command), auth, entity_id)
    except WireError as exc:
        return Failure(corr_id, entity_id, exc.error)
    return Request(corr_id, entity_id, command, auth, signature, authorized)


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
