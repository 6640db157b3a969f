"""Tests of `heliograph.transport.handshake`: two generators joined in memory, no sockets."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.crypto.certificates import SigningAlgorithm, TlsCredentials, create_authority
from heliograph.crypto.keys import KeyPair, generate_key_pair, public_key
from heliograph.crypto.session_keys import sign_session_key
from heliograph.transport.errors import HandshakeFailed
from heliograph.transport.handshake import (
    Established,
    Handshake,
    ServerIdentity,
    Service,
    ServiceCredentials,
    ServiceRequest,
    TlsFacts,
    connect_ntf,
    connect_smp,
    encrypts_blocks,
    serve_ntf,
    serve_smp,
)
from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.wire import handshakes as wire
from heliograph.wire.errors import TransportError
from heliograph.wire.handshakes import CertChainPubKey, ServiceRole
from heliograph.wire.keys import SPKI_PREFIX, Algorithm
from heliograph.wire.transmissions import Session
from heliograph.wire.versions import VersionRange
from tests.keys import START, fixed_key_pair
from tests.transport.support import (
    IDENTITY,
    NOW,
    OTHER_IDENTITY,
    SERVICE,
    SERVICE_ID,
    make_identity,
)

SESSION_ID = b"i" * 32
ROUTER_KEYS = fixed_key_pair(Algorithm.X25519, "router")
CLIENT_KEYS = fixed_key_pair(Algorithm.X25519, "client")
ALGORITHMS = list(product(SigningAlgorithm, SigningAlgorithm))
NTF_VERSIONS = range(1, 4)
SMP_VERSIONS = range(6, 20)

Tamper = Mapping[str, Callable[[bytes], bytes]]


@dataclass
class Outcome:
    """How each end came out: None is one that still waits."""

    client: Established | HandshakeFailed | None
    server: Established | HandshakeFailed | None
    requests: list[ServiceRequest]
    blocks: dict[str, bytes]

    @property
    def sessions(self) -> tuple[Established, Established]:
        assert isinstance(self.client, Established)
        assert isinstance(self.server, Established)
        return self.client, self.server

    @property
    def errors(self) -> tuple[TransportError | None, TransportError | None]:
        ends = (self.client, self.server)
        client, server = (end.error if isinstance(end, HandshakeFailed) else None for end in ends)
        return client, server


def join(
    client: Handshake,
    server: Handshake,
    *,
    service: bytes | TransportError | None = SERVICE_ID,
    tamper: Tamper | None = None,
) -> Outcome:
    """Run both ends against each other; `tamper` changes blocks: server, client, service."""
    outcome = Outcome(None, None, [], {})
    names = iter(["server", "client", "service"])
    inboxes: dict[str, deque[Any]] = {"client": deque([None]), "server": deque([None])}
    ends = {"server": server, "client": client}
    while any(name in ends and inbox for name, inbox in inboxes.items()):
        for name, peer in (("server", "client"), ("client", "server")):
            while name in ends and inboxes[name]:
                try:
                    event = ends[name].send(inboxes[name].popleft())
                except StopIteration as done:
                    setattr(outcome, name, done.value)
                    del ends[name]
                    continue
                except HandshakeFailed as exc:
                    setattr(outcome, name, exc)
                    del ends[name]
                    continue
                if isinstance(event, bytes):
                    block = next(names)
                    outcome.blocks[block] = event
                    inboxes[peer].append((tamper or {}).get(block, bytes)(event))
                    inboxes[name].appendleft(None)
                elif event is not None:
                    outcome.requests.append(event)
                    inboxes[name].appendleft(service)
    return outcome


def join_ntf(
    *,
    client: VersionRange = NTF.versions,
    server: VersionRange = NTF.versions,
    identity: ServerIdentity = IDENTITY,
    wanted: bytes | None = None,
    tamper: Tamper | None = None,
) -> Outcome:
    facts = TlsFacts(SESSION_ID, identity.credentials.chain)
    return join(
        connect_ntf(facts, wanted or identity.fingerprint, client, NOW),
        serve_ntf(TlsFacts(SESSION_ID, ()), identity, server, ROUTER_KEYS),
        tamper=tamper,
    )


def join_smp(
    *,
    client: VersionRange = SMP.versions,
    server: VersionRange = SMP.versions,
    identity: ServerIdentity = IDENTITY,
    wanted: bytes | None = None,
    keys: KeyPair | None = CLIENT_KEYS,
    service: ServiceCredentials | None = None,
    tls_chain: tuple[bytes, ...] | None = None,
    certificate_sent: bool = True,
    answer: bytes | TransportError | None = SERVICE_ID,
    tamper: Tamper | None = None,
) -> Outcome:
    facts = TlsFacts(SESSION_ID, identity.credentials.chain, certificate_sent)
    if tls_chain is None:
        tls_chain = service.credentials.chain if service else ()
    fingerprint = wanted or identity.fingerprint
    return join(
        connect_smp(facts, fingerprint, client, NOW, keys=keys, service=service),
        serve_smp(TlsFacts(SESSION_ID, tls_chain), identity, server, ROUTER_KEYS, NOW),
        service=answer,
        tamper=tamper,
    )


def join_protocol(protocol: AnyProtocol, **options: Any) -> Outcome:
    return join_ntf(**options) if protocol is NTF else join_smp(**options)


both = pytest.mark.parametrize("protocol", [NTF, SMP], ids=["ntf", "smp"])


def assert_ciphers_fit(client: Established, server: Established) -> None:
    assert client.cipher is not None
    assert server.cipher is not None
    for number in range(3):
        content = b"%d" % number
        assert server.cipher.decrypt(client.cipher.encrypt(content, 16384)) == content
        assert client.cipher.decrypt(server.cipher.encrypt(content, 16384)) == content


@pytest.mark.parametrize("version", NTF_VERSIONS)
@pytest.mark.parametrize(("leaf", "authority"), ALGORITHMS)
def test_ntf(version: int, leaf: SigningAlgorithm, authority: SigningAlgorithm) -> None:
    identity = make_identity(leaf, authority)
    client, server = join_ntf(client=VersionRange(1, version), identity=identity).sessions
    assert client.session == server.session == Session.ntf(SESSION_ID, version)
    assert client.peer_versions == NTF.versions
    assert client.peer_key == public_key(server.session_private or b"") == ROUTER_KEYS.public
    assert client.cipher is server.cipher is None
    assert client.service is server.service is None


@pytest.mark.parametrize("version", NTF_VERSIONS)
def test_ntf_older_router(version: int) -> None:
    client, server = join_ntf(server=VersionRange(1, version)).sessions
    assert client.session.version == server.session.version == version
    assert client.peer_key == (ROUTER_KEYS.public if version >= 2 else None)


@pytest.mark.parametrize("version", SMP_VERSIONS)
@pytest.mark.parametrize(("leaf", "authority"), ALGORITHMS)
def test_smp(version: int, leaf: SigningAlgorithm, authority: SigningAlgorithm) -> None:
    identity = make_identity(leaf, authority)
    client, server = join_smp(client=VersionRange(6, version), identity=identity).sessions
    assert client.session == server.session == Session.smp(SESSION_ID, version)
    assert client.peer_versions == SMP.versions
    assert client.peer_key == (ROUTER_KEYS.public if version >= 7 else None)
    assert server.session_private == (ROUTER_KEYS.private if version >= 7 else None)
    if version >= 11:
        assert_ciphers_fit(client, server)
    else:
        assert client.cipher is server.cipher is None


@pytest.mark.parametrize("version", SMP_VERSIONS)
def test_smp_older_router(version: int) -> None:
    client, server = join_smp(server=VersionRange(6, version)).sessions
    assert client.session == server.session == Session.smp(SESSION_ID, version)
    assert (client.cipher is None) == (server.cipher is None) == (version < 11)


@pytest.mark.parametrize("version", SMP_VERSIONS)
def test_smp_without_a_client_key(version: int) -> None:
    client, server = join_smp(client=VersionRange(6, version), keys=None).sessions
    assert client.session == server.session == Session.smp(SESSION_ID, version)
    assert client.cipher is server.cipher is None
    assert client.peer_key == (ROUTER_KEYS.public if version >= 7 else None)


@both
def test_no_alpn(protocol: AnyProtocol) -> None:
    legacy = protocol.offered(None)
    client, server = join_protocol(protocol, server=legacy).sessions
    assert client.session == server.session == protocol.session(SESSION_ID, legacy.max)
    assert client.peer_versions == legacy
    assert client.peer_key is None
    assert client.cipher is server.cipher is None


@pytest.mark.parametrize("version", range(14, 20))
def test_proxy_gets_no_encryption(version: int) -> None:
    def as_proxy(content: bytes) -> bytes:
        return wire.encode_smp_client(replace(wire.decode_smp_client(content), proxy_server=True))

    outcome = join_smp(client=VersionRange(6, version), tamper={"client": as_proxy})
    assert outcome.sessions[1].cipher is None


def test_encrypts_blocks() -> None:
    assert [v for v in SMP_VERSIONS if encrypts_blocks(v, proxy=False)] == list(range(11, 20))
    assert not any(encrypts_blocks(v, proxy=True) for v in SMP_VERSIONS)


@both
def test_trailing_bytes_are_ignored(protocol: AnyProtocol) -> None:
    tamper = dict.fromkeys(["server", "client"], lambda content: bytes(content) + b"later\0")
    for version in range(protocol.versions.min, protocol.versions.max + 1):
        outcome = join_protocol(
            protocol, client=VersionRange(protocol.versions.min, version), tamper=tamper
        )
        client, server = outcome.sessions
        assert client.session == server.session


# A peer that is not who it should be.


@both
def test_client_refuses_another_identity(protocol: AnyProtocol) -> None:
    outcome = join_protocol(protocol, wanted=OTHER_IDENTITY.fingerprint)
    assert outcome.errors == (TransportError.HANDSHAKE_IDENTITY, None)
    assert list(outcome.blocks) == ["server"]


@both
@pytest.mark.parametrize("chain", [(), (b"garbage",), IDENTITY.credentials.chain * 3])
def test_client_refuses_a_bad_chain(protocol: AnyProtocol, chain: tuple[bytes, ...]) -> None:
    facts = TlsFacts(SESSION_ID, chain)
    connect = connect_ntf if protocol is NTF else connect_smp
    with pytest.raises(HandshakeFailed, match="IDENTITY"):
        connect(facts, IDENTITY.fingerprint, protocol.versions, NOW).send(None)


@both
def test_client_refuses_a_certificate_of_another_time(protocol: AnyProtocol) -> None:
    facts = TlsFacts(SESSION_ID, IDENTITY.credentials.chain)
    connect = connect_ntf if protocol is NTF else connect_smp
    with pytest.raises(HandshakeFailed, match="IDENTITY"):
        connect(facts, IDENTITY.fingerprint, protocol.versions, START - 86_400).send(None)


@both
def test_client_refuses_a_leaf_that_the_identity_did_not_sign(protocol: AnyProtocol) -> None:
    chain = (OTHER_IDENTITY.credentials.chain[0], IDENTITY.credentials.chain[1])
    forger = ServerIdentity(
        TlsCredentials(chain, OTHER_IDENTITY.credentials.private_key), IDENTITY.fingerprint
    )
    outcome = join_protocol(protocol, identity=forger)
    assert outcome.errors == (TransportError.HANDSHAKE_IDENTITY, None)


@both
def test_server_refuses_a_client_of_another_router(protocol: AnyProtocol) -> None:
    def want_another(content: bytes) -> bytes:
        return content.replace(IDENTITY.fingerprint, OTHER_IDENTITY.fingerprint)

    outcome = join_protocol(protocol, tamper={"client": want_another})
    assert outcome.errors[1] is TransportError.HANDSHAKE_IDENTITY


@both
@pytest.mark.parametrize("version", [0, 4, 5, 20, 65535])
def test_server_refuses_a_version_it_does_not_have(protocol: AnyProtocol, version: int) -> None:
    def other_version(content: bytes) -> bytes:
        return version.to_bytes(2) + content[2:]

    outcome = join_protocol(protocol, tamper={"client": other_version})
    # Fields that another version lacks or has may also not parse.
    assert outcome.errors[1] in (TransportError.VERSION, TransportError.HANDSHAKE_PARSE)


@both
@pytest.mark.parametrize("theirs", [VersionRange(20, 30), VersionRange(0, 0)])
def test_no_common_version(protocol: AnyProtocol, theirs: VersionRange) -> None:
    outcome = join_protocol(protocol, server=theirs)
    assert outcome.errors == (TransportError.VERSION, None)
    assert f"{theirs.min} to {theirs.max}" in str(outcome.client)


@both
def test_router_may_have_dropped_old_versions(protocol: AnyProtocol) -> None:
    newest = protocol.versions.max
    client, server = join_protocol(protocol, server=VersionRange(newest, newest + 5)).sessions
    assert client.session.version == server.session.version == newest


@both
def test_another_tls_session(protocol: AnyProtocol) -> None:
    def of_another(content: bytes) -> bytes:
        return content.replace(SESSION_ID, b"j" * 32)

    outcome = join_protocol(protocol, tamper={"server": of_another})
    assert outcome.errors == (TransportError.SESSION, None)


def signed_key(key: bytes, identity: ServerIdentity = IDENTITY) -> bytes:
    return sign_session_key(identity.credentials.private_key, key)


OWN_KEY = signed_key(ROUTER_KEYS.public)


@both
@pytest.mark.parametrize(
    "key",
    [
        signed_key(ROUTER_KEYS.public, OTHER_IDENTITY),
        signed_key(generate_key_pair(Algorithm.ED25519).public),
        OWN_KEY[:-1] + bytes((OWN_KEY[-1] ^ 1,)),
        b"garbage",
        b"",
    ],
    ids=["forged", "Ed25519", "bad signature", "garbage", "empty"],
)
def test_client_refuses_a_session_key(protocol: AnyProtocol, key: bytes) -> None:
    def replace_key(content: bytes) -> bytes:
        if protocol is NTF:
            ntf_hello = wire.decode_ntf_server(content)
            return wire.encode_ntf_server(replace(ntf_hello, signed_key=key))
        hello = wire.decode_smp_server(content)
        auth = CertChainPubKey(IDENTITY.credentials.chain, key)
        return wire.encode_smp_server(replace(hello, auth=auth))

    outcome = join_protocol(protocol, tamper={"server": replace_key})
    assert outcome.errors == (TransportError.HANDSHAKE_BAD_AUTH, None)


@pytest.mark.parametrize("chain", [OTHER_IDENTITY.credentials.chain, (b"garbage",)])
def test_smp_chain_must_be_that_of_tls(chain: tuple[bytes, ...]) -> None:
    def replace_chain(content: bytes) -> bytes:
        hello = wire.decode_smp_server(content)
        return wire.encode_smp_server(replace(hello, auth=CertChainPubKey(chain, OWN_KEY)))

    outcome = join_smp(tamper={"server": replace_chain})
    assert outcome.errors == (TransportError.HANDSHAKE_BAD_AUTH, None)


def test_smp_router_without_a_session_key() -> None:
    def without(content: bytes) -> bytes:
        return wire.encode_smp_server(replace(wire.decode_smp_server(content), auth=None))

    client = join_smp(tamper={"server": without}).client
    assert isinstance(client, Established)
    assert client.peer_key is None
    assert client.cipher is None


def test_session_key_of_low_order() -> None:
    low = KeyPair(SPKI_PREFIX[Algorithm.X25519] + bytes(32), CLIENT_KEYS.private)
    assert join_smp(keys=low).errors[1] is TransportError.HANDSHAKE_BAD_AUTH

    def weak(content: bytes) -> bytes:
        hello = wire.decode_smp_server(content)
        auth = CertChainPubKey(IDENTITY.credentials.chain, signed_key(low.public))
        return wire.encode_smp_server(replace(hello, auth=auth))

    assert join_smp(tamper={"server": weak}).errors[0] is TransportError.HANDSHAKE_BAD_AUTH


# Services.


@pytest.mark.parametrize("version", range(16, 20))
@pytest.mark.parametrize(("leaf", "authority"), ALGORITHMS)
@pytest.mark.parametrize("role", ServiceRole)
def test_service(
    version: int, leaf: SigningAlgorithm, authority: SigningAlgorithm, role: ServiceRole
) -> None:
    identity = make_identity(leaf, authority, "NTF server CA")
    service = ServiceCredentials(role, identity.credentials)
    outcome = join_smp(client=VersionRange(6, version), service=service)
    client, server = outcome.sessions
    assert outcome.requests == [
        ServiceRequest(role, identity.fingerprint, identity.credentials.chain)
    ]
    assert client.service is not None
    public = public_key(client.service.key)
    assert server.service == Service(SERVICE_ID, role, identity.fingerprint, public)
    assert client.service == replace(server.service, key=client.service.key)
    assert public not in repr(client.service).encode()
    assert_ciphers_fit(client, server)


def test_service_with_one_certificate() -> None:
    authority = create_authority("NTF server", NOW)
    client, server = join_smp(service=ServiceCredentials(ServiceRole.NOTIFIER, authority)).sessions
    assert client.service is not None
    assert server.service is not None
    assert client.service.cert_hash == server.service.cert_hash


@pytest.mark.parametrize("version", range(6, 16))
def test_service_is_not_offered_to_old_routers(version: int) -> None:
    outcome = join_smp(client=VersionRange(6, version), service=SERVICE)
    client, server = outcome.sessions
    assert client.service is server.service is None
    assert outcome.requests == []


def test_service_is_not_offered_if_no_certificate_was_asked_for() -> None:
    client, server = join_smp(service=SERVICE, certificate_sent=False).sessions
    assert client.service is server.service is None


@pytest.mark.parametrize("error", TransportError)
def test_service_refused(error: TransportError) -> None:
    outcome = join_smp(service=SERVICE, answer=error)
    assert outcome.errors == (error, error)


def test_service_refused_without_a_reason() -> None:
    outcome = join_smp(service=SERVICE, answer=None)
    assert outcome.errors == (TransportError.HANDSHAKE_BAD_SERVICE,) * 2


def test_service_certificate_must_be_that_of_tls() -> None:
    for chain in ((), OTHER_IDENTITY.credentials.chain, SERVICE.credentials.chain[:1]):
        outcome = join_smp(service=SERVICE, tls_chain=chain)
        assert outcome.errors == (TransportError.HANDSHAKE_BAD_AUTH,) * 2
        assert outcome.requests == []


def service_key(key: bytes, private: bytes = SERVICE.credentials.private_key) -> bytes:
    return sign_session_key(private, key)


SERVICE_KEY = fixed_key_pair(Algorithm.ED25519, "service").public


@pytest.mark.parametrize(
    "key",
    [
        service_key(SERVICE_KEY, OTHER_IDENTITY.credentials.private_key),
        service_key(generate_key_pair(Algorithm.X25519).public),
        service_key(SERVICE_KEY)[:-1],
        b"",
    ],
    ids=["forged", "X25519", "truncated", "empty"],
)
def test_service_key_must_be_signed(key: bytes) -> None:
    def replace_key(content: bytes) -> bytes:
        hello = wire.decode_smp_client(content)
        assert hello.service is not None
        auth = CertChainPubKey(SERVICE.credentials.chain, key)
        return wire.encode_smp_client(replace(hello, service=replace(hello.service, auth=auth)))

    outcome = join_smp(service=SERVICE, tamper={"client": replace_key})
    assert outcome.errors == (TransportError.HANDSHAKE_BAD_AUTH,) * 2
    assert outcome.requests == []


def test_service_chain_must_be_genuine() -> None:
    chain = (SERVICE.credentials.chain[0], IDENTITY.credentials.chain[1])
    forged = replace(SERVICE, credentials=TlsCredentials(chain, SERVICE.credentials.private_key))
    outcome = join_smp(service=forged)
    assert outcome.errors == (TransportError.HANDSHAKE_BAD_AUTH,) * 2


@pytest.mark.parametrize("response", [b"", b"X", b"R", b"R\x20short", b"E", b"EUNKNOWN"])
def test_garbage_instead_of_a_service_id(response: bytes) -> None:
    outcome = join_smp(service=SERVICE, tamper={"service": lambda _: response})
    assert outcome.errors == (TransportError.HANDSHAKE_PARSE, None)


def test_low_order_key_of_a_service_does_not_reach_the_cipher() -> None:
    low = KeyPair(SPKI_PREFIX[Algorithm.X25519] + bytes(32), CLIENT_KEYS.private)
    outcome = join_smp(keys=low, service=SERVICE)
    assert outcome.errors[1] is TransportError.HANDSHAKE_BAD_AUTH


# Garbage.


def feed(handshake: Handshake, content: bytes | None) -> None:
    """Give a block where one is awaited; only `HandshakeFailed` may come of it."""
    event = handshake.send(None)
    if isinstance(event, bytes):
        event = handshake.send(None)
    assert event is None
    try:
        handshake.send(content)
    except (HandshakeFailed, StopIteration):
        return
    finally:
        handshake.close()


def ends(protocol: AnyProtocol) -> tuple[Handshake, Handshake]:
    facts = TlsFacts(SESSION_ID, IDENTITY.credentials.chain)
    wanted, versions = IDENTITY.fingerprint, protocol.versions
    if protocol is NTF:
        return connect_ntf(facts, wanted, versions, NOW), serve_ntf(
            facts, IDENTITY, versions, ROUTER_KEYS
        )
    return (
        connect_smp(facts, wanted, versions, NOW, keys=CLIENT_KEYS),
        serve_smp(facts, IDENTITY, versions, ROUTER_KEYS, NOW),
    )


@both
@given(content=st.binary(max_size=600))
def test_garbage(protocol: AnyProtocol, content: bytes) -> None:
    for end in ends(protocol):
        feed(end, content)


GENUINE = {NTF: join_ntf().blocks, SMP: join_smp(service=SERVICE).blocks}


@both
@given(data=st.data())
def test_mutated_hello(protocol: AnyProtocol, data: st.DataObject) -> None:
    for end, name in zip(ends(protocol), ("server", "client"), strict=True):
        block = bytearray(GENUINE[protocol][name])
        for _ in range(data.draw(st.integers(1, 3))):
            block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
        feed(end, bytes(block[: data.draw(st.integers(0, len(block)))]))


@both
def test_a_block_is_needed(protocol: AnyProtocol) -> None:
    for end in ends(protocol):
        event = end.send(None)
        if isinstance(event, bytes):
            end.send(None)
        with pytest.raises(HandshakeFailed, match="a block was expected"):
            end.send(None)
