"""Handshakes of both protocols and both ends, as generators without I/O.

A handshake yields `bytes` for a block to send, `None` to wait for the content of a block, or a
`ServiceRequest` to ask the router for the ID of a service; it returns `Established`, or raises
`HandshakeFailed`. The caller that drives it owns the socket.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeVar

from heliograph.crypto.certificates import TlsCredentials, fingerprint, identity_of
from heliograph.crypto.chains import BlockCipher
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair
from heliograph.crypto.session_keys import sign_session_key, verify_session_key
from heliograph.transport.errors import HandshakeFailed
from heliograph.wire import handshakes as wire
from heliograph.wire.errors import TransportError, WireError
from heliograph.wire.handshakes import CertChainPubKey, ServiceRole
from heliograph.wire.keys import Algorithm, public_key_algorithm
from heliograph.wire.transmissions import Session
from heliograph.wire.versions import (
    SMP_AUTH_COMMANDS,
    SMP_ENCRYPTED_BLOCK,
    SMP_PROXY_SERVER,
    SMP_SERVICE_CERTS,
    VersionRange,
    negotiate,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """Facts about the TLS connection under a handshake."""

    session_id: bytes
    peer_chain: tuple[bytes, ...]
    certificate_sent: bool = False


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Who a router is: the chain it shows, the leaf's key, and the fingerprint clients pin."""

    credentials: TlsCredentials
    fingerprint: bytes

    @classmethod
    def of(cls, credentials: TlsCredentials, now: float) -> "ServerIdentity":
        return cls(credentials, identity_of(credentials.chain, now).fingerprint)


@dataclass(frozen=True, slots=True)
class ServiceCredentials:
    """The long-term certificate of a service that connects to SMP routers."""

    role: ServiceRole
    credentials: TlsCredentials


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A client proved that it holds this certificate; resume with its service ID, or an error."""

    role: ServiceRole
    fingerprint: bytes
    chain: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Service:
    """The service of a session; `key` is public at a router and private at a client."""

    service_id: bytes
    role: ServiceRole
    cert_hash: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Established:
    """The result of a handshake.

    `peer_key` and `session_private` are the session keys that command authenticators use;
    `peer_auth` is the chain and signed key that a router showed its client.
    """

    session: Session
    peer_versions: VersionRange
    cipher: BlockCipher | None = None
    peer_key: bytes | None = None
    peer_auth: CertChainPubKey | None = None
    session_private: bytes | None = field(default=None, repr=False)
    service: Service | None = None


Handshake = Generator[bytes | ServiceRequest | None, bytes | TransportError | None, Established]


def serve_ntf(
    tls: TlsFacts, identity: ServerIdentity, versions: VersionRange, keys: KeyPair
) -> Handshake:
    signed = sign_session_key(identity.credentials.private_key, keys.public)
    yield wire.encode_ntf_server(wire.NtfServerHandshake(versions, tls.session_id, signed))
    hello = _parse(wire.decode_ntf_client, (yield None))
    _check_hello(hello.fingerprint, hello.version, identity, versions)
    session = Session.ntf(tls.session_id, hello.version)
    return Established(session, versions, session_private=keys.private)


def connect_ntf(tls: TlsFacts, server: bytes, versions: VersionRange, now: float) -> Handshake:
    """Shake hands with an NTF router.

    `server` is the fingerprint to find; `now` is the time for which certificates must be valid.
    """
    leaf_key = _check_server(tls, server, now)
    hello = _parse(wire.decode_ntf_server, (yield None))
    version = _check_server_hello(tls, hello.session_id, hello.versions, versions)
    peer_key = None
    if hello.signed_key is not None:
        peer_key = _session_key(leaf_key, hello.signed_key, Algorithm.X25519)
    yield wire.encode_ntf_client(wire.NtfClientHandshake(version, server))
    return Established(Session.ntf(tls.session_id, version), hello.versions, peer_key=peer_key)


def serve_smp(
    tls: TlsFacts, identity: ServerIdentity, versions: VersionRange, keys: KeyPair, now: float
) -> Handshake:
    signed = sign_session_key(identity.credentials.private_key, keys.public)
    auth = CertChainPubKey(identity.credentials.chain, signed)
    yield wire.encode_smp_server(wire.SmpServerHandshake(versions, tls.session_id, auth))
    hello = _parse(wire.decode_smp_client, (yield None))
    _check_hello(hello.fingerprint, hello.version, identity, versions)
    service = None
    if hello.service is not None:
        service = yield from _serve_service(tls, hello.service, now)
    cipher = None
    if hello.session_key is not None and encrypts_blocks(hello.version, hello.proxy_server):
        cipher = BlockCipher.server(tls.session_id, _agree(hello.session_key, keys.private))
    return Established(
        Session.smp(tls.session_id, hello.version),
        versions,
        cipher,
        peer_key=hello.session_key,
        session_private=keys.private if hello.version >= SMP_AUTH_COMMANDS else None,
        service=service,
    )


def connect_smp(
    tls: TlsFacts,
    server: bytes,
    versions: VersionRange,
    now: float,
    *,
    keys: KeyPair | None = None,
    service: ServiceCredentials | None = None,
    is_proxy: bool = False,
) -> Handshake:
    """`keys` are the client's session keys: without them blocks are not encrypted.

    Blocks of a proxy are never encrypted, as forwarded commands are, and would not fit.
    """
    leaf_key = _check_server(tls, server, now)
    hello = _parse(wire.decode_smp_server, (yield None))
    if is_proxy:
        versions = proxy_versions(versions, hello.versions)
    version = _check_server_hello(tls, hello.session_id, hello.versions, versions)
    peer_key = None
    if hello.auth is not None:
        if _identity(hello.auth.chain, now) != server:
            raise HandshakeFailed(TransportError.HANDSHAKE_BAD_AUTH, "another identity")
        peer_key = _session_key(leaf_key, hello.auth.signed_key, Algorithm.X25519)
    offers_service = version >= SMP_SERVICE_CERTS and tls.certificate_sent
    client_service, service_keys = None, None
    if service is not None and offers_service:
        service_keys = generate_key_pair(Algorithm.ED25519)
        signed = sign_session_key(service.credentials.private_key, service_keys.public)
        client_service = wire.ClientService(
            service.role, CertChainPubKey(service.credentials.chain, signed)
        )
    yield wire.encode_smp_client(
        wire.SmpClientHandshake(version, server, keys and keys.public, is_proxy, client_service)
    )
    accepted = None
    if service is not None and service_keys is not None:
        accepted = yield from _await_service(service, service_keys)
    cipher = None
    if keys is not None and peer_key is not None and encrypts_blocks(version, is_proxy):
        cipher = BlockCipher.client(tls.session_id, _agree(peer_key, keys.private))
    return Established(
        Session.smp(tls.session_id, version),
        hello.versions,
        cipher,
        peer_key=peer_key if version >= SMP_AUTH_COMMANDS else None,
        peer_auth=hello.auth,
        session_private=keys and keys.private,
        service=accepted,
    )


def proxy_versions(ours: VersionRange, theirs: VersionRange) -> VersionRange:
    """Return the versions that a proxy offers a destination.

    A destination that does not know of proxies would encrypt blocks.
    """
    if theirs.max >= SMP_PROXY_SERVER:
        return ours
    return VersionRange(ours.min, min(ours.max, SMP_ENCRYPTED_BLOCK - 1))


def encrypts_blocks(version: int, proxy: bool) -> bool:
    return version >= SMP_ENCRYPTED_BLOCK and not proxy


_ServiceSteps = Generator[bytes | ServiceRequest | None, bytes | TransportError | None, Service]


def _serve_service(tls: TlsFacts, offer: wire.ClientService, now: float) -> _ServiceSteps:
    """Return the third message: the ID of the service, or why it is refused."""
    try:
        if offer.auth.chain != tls.peer_chain:
            raise CryptoError("not the certificate of the TLS connection")
        identity = identity_of(offer.auth.chain, now)
        key = verify_session_key(identity.leaf_public_key, offer.auth.signed_key)
        if public_key_algorithm(key) is not Algorithm.ED25519:
            raise CryptoError("a service signs with Ed25519")
    except CryptoError as exc:
        error = TransportError.HANDSHAKE_BAD_AUTH
        yield wire.encode_service_response(wire.ServiceRefused(error))
        raise HandshakeFailed(error, str(exc)) from None
    answer = yield ServiceRequest(offer.role, identity.fingerprint, offer.auth.chain)
    if not isinstance(answer, bytes):
        error = answer or TransportError.HANDSHAKE_BAD_SERVICE
        yield wire.encode_service_response(wire.ServiceRefused(error))
        raise HandshakeFailed(error)
    yield wire.encode_service_response(wire.ServiceAccepted(answer))
    return Service(answer, offer.role, identity.fingerprint, key)


def _await_service(service: ServiceCredentials, keys: KeyPair) -> _ServiceSteps:
    response = _parse(wire.decode_service_response, (yield None))
    if isinstance(response, wire.ServiceRefused):
        raise HandshakeFailed(response.error, "the router refused the service")
    chain = service.credentials.chain
    cert_hash = fingerprint(chain[0] if len(chain) == 1 else chain[1])
    return Service(response.service_id, service.role, cert_hash, keys.private)


def _check_hello(
    wanted: bytes, version: int, identity: ServerIdentity, versions: VersionRange
) -> None:
    if wanted != identity.fingerprint:
        raise HandshakeFailed(TransportError.HANDSHAKE_IDENTITY, "the client wants another router")
    if version not in versions:
        raise HandshakeFailed(TransportError.VERSION)


def _check_server_hello(
    tls: TlsFacts, session_id: bytes, theirs: VersionRange, ours: VersionRange
) -> int:
    if session_id != tls.session_id:
        raise HandshakeFailed(TransportError.SESSION, "another TLS session")
    version = negotiate(ours, theirs)
    if version is None:
        raise HandshakeFailed(
            TransportError.VERSION, f"the router speaks {theirs.min} to {theirs.max}"
        )
    return version


def _check_server(tls: TlsFacts, server: bytes, now: float) -> bytes:
    try:
        identity = identity_of(tls.peer_chain, now)
    except CryptoError as exc:
        raise HandshakeFailed(TransportError.HANDSHAKE_IDENTITY, str(exc)) from None
    if identity.fingerprint != server:
        raise HandshakeFailed(TransportError.HANDSHAKE_IDENTITY, "another certificate than pinned")
    return identity.leaf_public_key


def _identity(chain: tuple[bytes, ...], now: float) -> bytes | None:
    try:
        return identity_of(chain, now).fingerprint
    except CryptoError:
        return None


def _session_key(leaf_key: bytes, signed: bytes, algorithm: Algorithm) -> bytes:
    try:
        key = verify_session_key(leaf_key, signed)
    except CryptoError as exc:
        raise HandshakeFailed(TransportError.HANDSHAKE_BAD_AUTH, str(exc)) from None
    if public_key_algorithm(key) is not algorithm:
        raise HandshakeFailed(TransportError.HANDSHAKE_BAD_AUTH, f"not an {algorithm.value} key")
    return key


def _agree(public: bytes, private: bytes) -> bytes:
    try:
        return dh(public, private)
    except CryptoError as exc:
        raise HandshakeFailed(TransportError.HANDSHAKE_BAD_AUTH, str(exc)) from None


def _parse(decode: Callable[[bytes], T], content: object) -> T:
    if not isinstance(content, bytes):
        raise HandshakeFailed(TransportError.HANDSHAKE_PARSE, "a block was expected")
    try:
        return decode(content)
    except WireError as exc:
        raise HandshakeFailed(TransportError.HANDSHAKE_PARSE, str(exc)) from None
