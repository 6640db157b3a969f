"""Decode the content of a block into commands or responses.

A router answers each `Failure` and serves the rest: one bad transmission does not affect others.
"""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from heliograph.wire.errors import ErrorType, WireError
from heliograph.wire.table import Table, check_credentials
from heliograph.wire.transmissions import (
    Session,
    TransmissionError,
    decode_transmission,
    encode_transmission,
    unpack,
)

M = TypeVar("M")


class Request(NamedTuple, Generic[M]):
    """A well-formed command with the credentials that it needs, not yet verified."""

    corr_id: bytes
    entity_id: bytes
    command: M
    auth: bytes
    service_signature: bytes | None
    authorized: bytes


class Reply(NamedTuple, Generic[M]):
    """A response, or with an empty `corr_id` a push."""

    corr_id: bytes
    entity_id: bytes
    message: M


@dataclass(frozen=True, slots=True)
class Failure:
    """A transmission that was malformed, and the error that answers it."""

    corr_id: bytes
    entity_id: bytes
    error: ErrorType


def decode_requests(
    session: Session, commands: Table[M], content: bytes
) -> list[Request[M] | Failure]:
    """Decode what a router received."""
    try:
        transmissions = unpack(session, content)
    except TransmissionError as exc:
        return [Failure(b"", b"", exc.error)]
    return [_decode_request(session, commands, data) for data in transmissions]


def decode_replies(
    session: Session, responses: Table[M], content: bytes
) -> list[Reply[M] | Failure]:
    """Decode what a client received."""
    try:
        transmissions = unpack(session, content)
    except TransmissionError as exc:
        return [Failure(b"", b"", exc.error)]
    return [_decode_reply(session, responses, data) for data in transmissions]


def encode_reply(
    session: Session, responses: Table[M], corr_id: bytes, entity_id: bytes, message: M
) -> bytes:
    command = responses.encode(message, session.version)
    return encode_transmission(session, corr_id, entity_id, command)


def _decode_request(session: Session, commands: Table[M], data: bytes) -> Request[M] | Failure:
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


def _decode_reply(session: Session, responses: Table[M], data: bytes) -> Reply[M] | Failure:
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
