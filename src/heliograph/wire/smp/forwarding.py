"""Commands and responses for private routing: a sender reaches a queue's router through a proxy.

A sender asks its proxy for a session with the destination (PRXY, PKEY), then sends it encrypted
commands (PFWD), which the proxy forwards (RFWD). The answer comes back the same way (RRES, PRES).
"""

from dataclasses import dataclass

from heliograph.wire.addresses import ServerAddress, smp_server
from heliograph.wire.handshakes import CertChainPubKey, cert_chain_key
from heliograph.wire.keys import x25519_public_key
from heliograph.wire.primitives import Reader, encode_short, short, tail, u16
from heliograph.wire.smp.fields import password
from heliograph.wire.table import Command, Credentials, Field, Message
from heliograph.wire.versions import VersionRange, version_range

FORWARDED_SIZE = 16226
"""Padded size of a forwarded command and of its answer."""


@dataclass(frozen=True, slots=True)
class PKEY:
    """The proxy's session with the destination."""

    session_id: bytes
    versions: VersionRange
    auth: CertChainPubKey


@dataclass(frozen=True, slots=True)
class PRES:
    """The destination's encrypted answer, for the sender."""

    response: bytes


@dataclass(frozen=True, slots=True)
class RRES:
    """The destination's encrypted answer, for the proxy; encrypted `ForwardedResponse`."""

    response: bytes


@dataclass(frozen=True, slots=True)
class PRXY(Command[PKEY]):
    """Ask a proxy for a session with a destination router."""

    server: ServerAddress
    password: bytes | None = None


@dataclass(frozen=True, slots=True)
class PFWD(Command[PRES]):
    """Have a command forwarded; `key` is the sender's key for this command only."""

    version: int
    key: bytes
    transmission: bytes


@dataclass(frozen=True, slots=True)
class RFWD(Command[RRES]):
    """A command forwarded by a proxy; encrypted `ForwardedTransmission`."""

    transmission: bytes


@dataclass(frozen=True, slots=True)
class ForwardedTransmission:
    """The content of RFWD: the parameters of PFWD with its correlation ID."""

    corr_id: bytes
    version: int
    key: bytes
    transmission: bytes


@dataclass(frozen=True, slots=True)
class ForwardedResponse:
    """The content of RRES: the content of PRES with the correlation ID of PFWD."""

    corr_id: bytes
    response: bytes


def encode_forwarded(forwarded: ForwardedTransmission) -> bytes:
    return (
        encode_short(forwarded.corr_id)
        + u16.encode(forwarded.version)
        + encode_short(forwarded.key)
        + forwarded.transmission
    )


def decode_forwarded(data: bytes) -> ForwardedTransmission:
    reader = Reader(data)
    return ForwardedTransmission(
        reader.short(), reader.u16(), x25519_public_key.decode(reader), reader.tail()
    )


def encode_forwarded_response(forwarded: ForwardedResponse) -> bytes:
    return encode_short(forwarded.corr_id) + forwarded.response


def decode_forwarded_response(data: bytes) -> ForwardedResponse:
    reader = Reader(data)
    return ForwardedResponse(reader.short(), reader.tail())


FORWARDING_COMMANDS = (
    Message(PRXY, Credentials.NONE, (Field("server", smp_server), Field("password", password))),
    Message(
        PFWD,
        Credentials.ENTITY_NO_AUTH,
        (Field("version", u16), Field("key", x25519_public_key), Field("transmission", tail)),
    ),
    Message(RFWD, Credentials.NONE, (Field("transmission", tail),)),
)
FORWARDING_RESPONSES = (
    Message(
        PKEY,
        Credentials.REPLY_NO_ENTITY,
        (
            Field("session_id", short),
            Field("versions", version_range),
            Field("auth", cert_chain_key),
        ),
    ),
    Message(PRES, Credentials.REPLY, (Field("response", tail),)),
    Message(RRES, Credentials.REPLY_NO_ENTITY, (Field("response", tail),)),
)
