"""Requests of a client: encoded and authorized, and pending until they are answered.

A pending request stands alone, or in a group that one future and one timer serve: a future and a
timer for each of many requests would cost more than the rest of their handling.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from heliograph.crypto.authorization import authorize
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import sign
from heliograph.transport.errors import (
    ClientError,
    MalformedReply,
    RequestRefused,
    UnexpectedReply,
)
from heliograph.transport.handshake import Established
from heliograph.transport.protocols import AnyProtocol, Response
from heliograph.wire import ntf, smp
from heliograph.wire.errors import WireError
from heliograph.wire.requests import Failure, Reply
from heliograph.wire.table import Command
from heliograph.wire.transmissions import (
    authorized_bytes,
    encode_transmission,
    max_transmission_size,
)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class ClientRequest(Generic[R_co]):
    """A command for an entity, authorized with `key` (PKCS#8 DER) if the command needs it."""

    command: Command[R_co]
    entity_id: bytes = b""
    key: bytes | None = field(default=None, repr=False)


def encode_request(
    established: Established, protocol: AnyProtocol, corr_id: bytes, request: ClientRequest[R]
) -> bytes:
    """Return the transmission of a request. Raises `ClientError` if there can be none."""
    session, entity_id = established.session, request.entity_id
    auth, service_signature = b"", None
    try:
        command = protocol.commands.encode(request.command, session.version)
        if request.key is not None:
            authorized = authorized_bytes(session, corr_id, entity_id, command)
            service = established.service
            if service is not None and type(request.command) in protocol.service_commands:
                service_signature = sign(service.key, authorized)
                authorized = service.cert_hash + authorized
            auth = authorize(request.key, established.peer_key, corr_id, authorized)
        data = encode_transmission(session, corr_id, entity_id, command, auth, service_signature)
    except (WireError, CryptoError) as exc:
        raise ClientError(str(exc)) from exc
    if len(data) > max_transmission_size(session):
        raise ClientError("the command does not fit in a block")
    return data


class Pending(Protocol[R_contra]):
    """One request. It is settled with a response, or with the `ClientError` that prevented it."""

    @property
    def entity_id(self) -> bytes: ...

    @property
    def responses(self) -> frozenset[type]:
        """Return the types of response that the command may have."""

    def settle(self, answer: R_contra | ClientError) -> None: ...


AnyPending = Pending[Any]
"""A request of which only the types of response are known, to itself."""


@dataclass(slots=True)
class Single(Generic[R]):
    entity_id: bytes
    responses: frozenset[type]
    future: asyncio.Future[R]
    timer: asyncio.TimerHandle

    def settle(self, answer: R | ClientError) -> None:
        self.timer.cancel()
        if self.future.done():
            return
        if isinstance(answer, ClientError):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)


_UNANSWERED = ClientError("no answer yet")


@dataclass(slots=True)
class Group(Generic[R]):
    """`answers` are complete once `future` is done."""

    corr_ids: list[bytes]
    future: asyncio.Future[None]
    answers: list[R | ClientError]
    left: int
    timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, corr_ids: list[bytes], future: asyncio.Future[None]) -> "Group[R]":
        return cls(corr_ids, future, [_UNANSWERED] * len(corr_ids), len(corr_ids))

    def settle(self, place: int, answer: R | ClientError) -> None:
        self.answers[place] = answer
        self.left -= 1
        if not self.left:
            if self.timer is not None:
                self.timer.cancel()
            if not self.future.done():
                self.future.set_result(None)


@dataclass(slots=True)
class GroupMember(Generic[R]):
    """One request of a group, and its place there."""

    entity_id: bytes
    responses: frozenset[type]
    group: Group[R]
    place: int

    def settle(self, answer: R | ClientError) -> None:
        self.group.settle(self.place, answer)


def response_of(pending: Pending[R], item: Reply[Response] | Failure) -> Response | ClientError:
    """Return the response that settles a request: the router's, or why it is none."""
    if isinstance(item, Failure):
        return MalformedReply(item.error)
    if isinstance(item.message, ntf.ERR | smp.ERR):
        return RequestRefused(item.message.error)
    if item.entity_id and item.entity_id != pending.entity_id:
        return UnexpectedReply("the answer is about another entity")
    if type(item.message) not in pending.responses:
        return UnexpectedReply(f"{type(item.message).__name__} is no answer to this")
    return item.message
