"""The replay itself, on recordings made here of sessions that the bundled ones do not have."""

from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.crypto import keys
from heliograph.crypto.authorization import authorize
from heliograph.crypto.certificates import fingerprint
from heliograph.transport.handshake import (
    Established,
    TlsFacts,
    connect_smp,
    serve_smp,
)
from heliograph.wire import smp
from heliograph.wire.handshakes import (
    NtfClientHandshake,
    NtfServerHandshake,
    encode_ntf_client,
    encode_ntf_server,
)
from heliograph.wire.keys import Algorithm
from heliograph.wire.primitives import b64encode, pad
from heliograph.wire.transmissions import (
    NTF_BLOCK_SIZE,
    SMP_BLOCK_SIZE,
    RawTransmission,
    Session,
    authorized_bytes,
    decode_transmission,
    encode_transmission,
    pack,
    unpack,
)
from heliograph.wire.versions import (
    NTF_VERSIONS,
    SMP_SERVICE_CERTS,
    SMP_VERSIONS,
    VersionRange,
)
from tests.keys import fixed_key_pair
from tests.transport.support import IDENTITY, NOW, SERVICE, SERVICE_ID
from tests.vectors.files import Line
from tests.vectors.replay import UP, Replay

SESSION_ID = b"i" * 32
QUEUE_ID = b"q" * 24
QUEUE_KEY = fixed_key_pair(Algorithm.X25519, "queue")


class Recorder:
    """What a router that is recorded writes down."""

    def __init__(self) -> None:
        self.events: list[Line] = []

    def add(self, layer: str, **fields: Any) -> None:
        self.events.append({"conn": "service", "layer": layer, **fields})

    def key(self, name: str, pair: keys.KeyPair) -> None:
        private = pair.private
        self.add(
            "key",
            name=name,
            private_pkcs8=private.hex(),
            private_pkcs8_b64url=b64encode(private),
            public_spki=pair.public.hex(),
        )

    def block(self, direction: str, raw: bytes) -> None:
        self.add("raw_block", dir=direction, hex=raw.hex())

    def sent(self, server: Established, content: bytes) -> None:
        assert server.cipher is not None
        self.add("block_content", dir="server_send", hex=content.hex())
        self.block("send", server.cipher.encrypt(content, SMP_BLOCK_SIZE))

    def received(self, client: Established, content: bytes) -> None:
        assert client.cipher is not None
        self.block("recv", client.cipher.encrypt(content, SMP_BLOCK_SIZE))
        self.add("block_content", dir="server_recv", hex=content.hex())


def shake_hands(recorder: Recorder, version: int) -> tuple[Established, Established]:
    router_keys = keys.generate_key_pair(Algorithm.X25519)
    recorder.key("server_session_x25519", router_keys)
    versions = VersionRange(SMP_VERSIONS.min, version)
    chain = IDENTITY.credentials.chain
    client = connect_smp(
        TlsFacts(SESSION_ID, chain, certificate_sent=True),
        IDENTITY.fingerprint,
        versions,
        NOW,
        keys=keys.generate_key_pair(Algorithm.X25519),
        service=SERVICE,
    )
    server = serve_smp(
        TlsFacts(SESSION_ID, SERVICE.credentials.chain), IDENTITY, versions, router_keys, NOW
    )
    hello = next(server)
    assert isinstance(hello, bytes)
    next(server)
    next(client)
    answer = client.send(hello)
    assert isinstance(answer, bytes)
    next(client)
    server.send(answer)
    accepted = server.send(SERVICE_ID)
    assert isinstance(accepted, bytes)
    for direction, content in (("send", hello), ("recv", answer), ("send", accepted)):
        recorder.block(direction, pad(content, SMP_BLOCK_SIZE))
    return finished(client, accepted), finished(server, None)


def finished(handshake: Any, content: bytes | None) -> Established:
    with pytest.raises(StopIteration) as done:
        handshake.send(content)
    established = done.value.value
    assert isinstance(established, Established)
    return established


def requests(client: Established) -> Iterator[tuple[bytes, bytes, Any, bytes, bytes | None]]:
    """NSUB, which a service signs besides the queue's key; and NSUBS, which it alone signs."""
    session, service = client.session, client.service
    assert service is not None
    for number, command, entity_id in ((1, smp.NSUB(), QUEUE_ID), (2, smp.NSUBS(1), SERVICE_ID)):
        corr_id = bytes([number]) * 24
        encoded = smp.SMP_COMMANDS.encode(command, session.version)
        authorized = authorized_bytes(session, corr_id, entity_id, encoded)
        signature = keys.sign(service.key, authorized)
        if entity_id == QUEUE_ID:
            covered = service.cert_hash + authorized
            auth = authorize(QUEUE_KEY.private, client.peer_key, corr_id, covered)
            yield corr_id, entity_id, command, auth, signature
        else:
            yield corr_id, entity_id, command, signature, None


def record(version: int) -> list[Line]:
    recorder = Recorder()
    certificates = [
        {"der": der.hex(), "sha256_b64url": b64encode(fingerprint(der))}
        for der in SERVICE.credentials.chain
    ]
    recorder.add("tls", alpn="smp/1", certs=certificates, sessionId_tlsUnique=SESSION_ID.hex())
    recorder.key("notifier", QUEUE_KEY)
    client, server = shake_hands(recorder, version)
    recorder.add("handshake_done", version=version, blockEncryption=True)
    session = client.session
    answers: dict[type, smp.SOK | smp.SOKS] = {
        smp.NSUB: smp.SOK(SERVICE_ID),
        smp.NSUBS: smp.SOKS(1),
    }
    for corr_id, entity_id, command, auth, signature in requests(client):
        encoded = smp.SMP_COMMANDS.encode(command, version)
        sent = encode_transmission(session, corr_id, entity_id, encoded, auth, signature)
        recorder.received(client, *pack(session, [sent]))
        recorder.add(
            "transmission",
            dir="server_recv",
            corrId=corr_id.hex(),
            entityId=entity_id.hex(),
            command=encoded.hex(),
            auth=auth.hex(),
            serviceSig=signature and signature.hex(),
        )
        answer = smp.SMP_RESPONSES.encode(answers[type(command)], version)
        reply = encode_transmission(session, corr_id, entity_id, answer)
        recorder.sent(server, *pack(session, [reply]))
    return recorder.events


@pytest.mark.parametrize("version", range(SMP_SERVICE_CERTS, SMP_VERSIONS.max + 1))
def test_service_session(version: int) -> None:
    counts = Replay(record(version), "service").run()
    assert counts["handshake"] == 3
    assert counts["decrypted"] == 4
    assert counts["authorizations"] == counts["requests"] == counts["replies"] == 2


def test_service_signature_of_another_session() -> None:
    events = record(SMP_VERSIONS.max)
    replay = Replay(events, "service")
    with pytest.raises(AssertionError):
        replay.check_router_side(*forged(replay))


def forged(replay: Replay) -> tuple[Line, RawTransmission]:
    block = next(block for block in replay.blocks if block.direction == UP)
    assert block.content is not None
    (item,) = unpack(replay.session, block.content)
    raw = decode_transmission(replay.session, item)
    assert raw.service_signature is not None
    signature = bytes(64)
    event = {"auth": raw.auth.hex(), "serviceSig": signature.hex()}
    return event, raw._replace(service_signature=signature)


def closed_after(*sent: bytes) -> list[Line]:
    """An NTF router that closed the connection after its client had sent this."""
    recorder = Recorder()
    hello = encode_ntf_server(NtfServerHandshake(NTF_VERSIONS, SESSION_ID, b"key"))
    recorder.block("recv", pad(hello, NTF_BLOCK_SIZE))
    for raw in sent:
        recorder.block("send", raw)
    recorder.block("recv", b"")
    return recorder.events


HELLO = pad(encode_ntf_client(NtfClientHandshake(3, IDENTITY.fingerprint)), NTF_BLOCK_SIZE)


@pytest.mark.parametrize("garbage", [bytes(512), b"\xff" * 512, b"\0\2\0\3" + b"#" * 508])
def test_hello_that_makes_no_sense(garbage: bytes) -> None:
    counts = Replay(closed_after(garbage), "service").run()
    assert counts["handshake"] == 1
    assert counts["raw_block"] == 3


@pytest.mark.parametrize("cut", [1, 511])
def test_block_that_was_never_finished(cut: int) -> None:
    counts = Replay(closed_after(HELLO, HELLO[:cut]), "service").run()
    assert counts["handshake"] == 2
    assert counts["requests"] == counts["failures"] == 0


def test_router_that_closes_for_no_reason() -> None:
    ping = encode_transmission(Session.ntf(SESSION_ID, 3), b"1", b"", b"PING")
    (content,) = pack(Session.ntf(SESSION_ID, 3), [ping])
    block = pad(content, NTF_BLOCK_SIZE)
    with pytest.raises(AssertionError):
        Replay(closed_after(HELLO, block), "service").run()
