"""Handshakes of both protocols: one unencrypted block per message, extra bytes ignored."""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from heliograph.wire.errors import (
    ErrorCode,
    TransportError,
    WireError,
    decode_transport_error,
    encode_transport_error,
)
from heliograph.wire.keys import Algorithm, public_key_algorithm
from heliograph.wire.primitives import (
    Codec,
    Reader,
    boolean,
    encode_large,
    encode_short,
    large,
    list_of,
    u16,
)
from heliograph.wire.versions import (
    NTF_AUTH_BATCH,
    SMP_AUTH_COMMANDS,
    SMP_PROXY_SERVER,
    SMP_SERVICE_CERTS,
    VersionRange,
    version_range,
)

NTF_ALPN = "ntf/1"
SMP_ALPN = "smp/1"

_chain = list_of(large)


@dataclass(frozen=True, slots=True)
class NtfServerHandshake:
    """First message of an NTF router. `signed_key`, from version 2, is its signed session key."""

    versions: VersionRange
    session_id: bytes
    signed_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class NtfClientHandshake:
    version: int
    fingerprint: bytes


class ServiceRole(Enum):
    MESSAGING = b"M"
    NOTIFIER = b"N"
    PROXY = b"P"


@dataclass(frozen=True, slots=True)
class CertChainPubKey:
    """A certificate chain and a session key that its leaf signed."""

    chain: tuple[bytes, ...]
    signed_key: bytes


@dataclass(frozen=True, slots=True)
class SmpServerHandshake:
    versions: VersionRange
    session_id: bytes
    auth: CertChainPubKey | None = None


@dataclass(frozen=True, slots=True)
class ClientService:
    role: ServiceRole
    auth: CertChainPubKey


@dataclass(frozen=True, slots=True)
class SmpClientHandshake:
    version: int
    fingerprint: bytes
    session_key: bytes | None = None
    proxy_server: bool = False
    service: ClientService | None = None


@dataclass(frozen=True, slots=True)
class ServiceAccepted:
    service_id: bytes


@dataclass(frozen=True, slots=True)
class ServiceRefused:
    error: TransportError


def encode_ntf_server(handshake: NtfServerHandshake) -> bytes:
    head = version_range.encode(handshake.versions) + encode_short(handshake.session_id)
    if handshake.versions.max < NTF_AUTH_BATCH or handshake.signed_key is None:
        return head
    return head + encode_large(handshake.signed_key)


def decode_ntf_server(content: bytes) -> NtfServerHandshake:
    reader = _reader(content)
    versions = version_range.decode(reader)
    session_id = reader.short()
    signed_key = reader.large() if versions.max >= NTF_AUTH_BATCH else None
    return NtfServerHandshake(versions, session_id, signed_key)


def encode_ntf_client(handshake: NtfClientHandshake) -> bytes:
    return u16.encode(handshake.version) + encode_short(handshake.fingerprint)


def decode_ntf_client(content: bytes) -> NtfClientHandshake:
    reader = _reader(content)
    return NtfClientHandshake(reader.u16(), reader.short())


def encode_smp_server(handshake: SmpServerHandshake) -> bytes:
    head = version_range.encode(handshake.versions) + encode_short(handshake.session_id)
    if handshake.versions.max < SMP_AUTH_COMMANDS or handshake.auth is None:
        return head
    return head + _encode_auth(handshake.auth)


def decode_smp_server(content: bytes) -> SmpServerHandshake:
    reader = _reader(content)
    versions = version_range.decode(reader)
    session_id = reader.short()
    has_auth = versions.max >= SMP_AUTH_COMMANDS and reader.pos < len(content)
    return SmpServerHandshake(versions, session_id, _decode_auth(reader) if has_auth else None)


def encode_smp_client(handshake: SmpClientHandshake) -> bytes:
    parts = [u16.encode(handshake.version), encode_short(handshake.fingerprint)]
    if handshake.version >= SMP_AUTH_COMMANDS and handshake.session_key is not None:
        parts.append(encode_short(handshake.session_key))
    if handshake.version >= SMP_PROXY_SERVER:
        parts.append(boolean.encode(handshake.proxy_server))
    if handshake.version >= SMP_SERVICE_CERTS:
        service = handshake.service
        if service is None:
            parts.append(b"0")
        else:
            parts.append(b"1" + service.role.value + _encode_auth(service.auth))
    return b"".join(parts)


def decode_smp_client(content: bytes) -> SmpClientHandshake:
    reader = _reader(content)
    version = reader.u16()
    fingerprint = reader.short()
    session_key = _optional_key(reader) if version >= SMP_AUTH_COMMANDS else None
    proxy_server = boolean.decode(reader) if version >= SMP_PROXY_SERVER else False
    service = _optional_service(reader) if version >= SMP_SERVICE_CERTS else None
    return SmpClientHandshake(version, fingerprint, session_key, proxy_server, service)


def encode_service_response(response: ServiceAccepted | ServiceRefused) -> bytes:
    match response:
        case ServiceAccepted():
            return b"R" + encode_short(response.service_id)
        case ServiceRefused():
            return b"E" + encode_transport_error(response.error)
        case _:
            assert_never(response)


def decode_service_response(content: bytes) -> ServiceAccepted | ServiceRefused:
    reader = _reader(content)
    match reader.take(1):
        case b"R":
            return ServiceAccepted(reader.short())
        case b"E":
            return ServiceRefused(_decode_refusal(reader))
    raise reader.fail("neither R nor E")


def _decode_refusal(reader: Reader) -> TransportError:
    words = reader.tail().split(b" ")
    size = 2 if words[0] == b"HANDSHAKE" else 1
    try:
        return decode_transport_error(b" ".join(words[:size]))
    except WireError:
        raise reader.fail("unknown error") from None


def _encode_auth(auth: CertChainPubKey) -> bytes:
    return _chain.encode(auth.chain) + encode_large(auth.signed_key)


def _decode_auth(reader: Reader) -> CertChainPubKey:
    return CertChainPubKey(_chain.decode(reader), reader.large())


def _optional_key(reader: Reader) -> bytes | None:
    """Read a key that may be absent without a marker: recognize it by its form."""
    start = reader.pos
    size = reader.data[start] if start < len(reader.data) else 0
    key = reader.data[start + 1 : start + 1 + size]
    if public_key_algorithm(key) is not Algorithm.X25519:
        return None
    reader.pos = start + 1 + size
    return key


def _optional_service(reader: Reader) -> ClientService | None:
    match reader.take(1):
        case b"0":
            return None
        case b"1":
            try:
                role = ServiceRole(reader.take(1))
            except ValueError:
                raise reader.fail("unknown service role") from None
            return ClientService(role, _decode_auth(reader))
    raise reader.fail("neither 0 nor 1 before the service")


cert_chain_key = Codec[CertChainPubKey]("chain + signed key", _encode_auth, _decode_auth)


def _reader(content: bytes) -> Reader:
    return Reader(content, ErrorCode.BLOCK)
