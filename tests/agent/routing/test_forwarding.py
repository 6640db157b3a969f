"""A forwarded command as the destination opens it, and the answer as the sender does."""

import os
import time

import pytest

from heliograph.agent.routing.forwarding import ForwardingSession, NoCommonVersion
from heliograph.crypto.authorization import verify_authorization
from heliograph.crypto.forwarding import open_command, seal_answer
from heliograph.crypto.keys import box_key, generate_key_pair
from heliograph.crypto.session_keys import sign_session_key
from heliograph.transport.errors import ClientError, RequestRefused, UnexpectedReply
from heliograph.transport.protocols import SMP
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.handshakes import CertChainPubKey
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Request, decode_requests, encode_reply
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.transmissions import Session, pack
from heliograph.wire.versions import VersionRange
from tests.keys import fixed_key_pair
from tests.smp.support import identity

DESTINATION = identity("SMP destination CA")
CREDENTIALS = DESTINATION.credentials
SESSION_KEYS = fixed_key_pair(Algorithm.X25519, "session")
OURS = VersionRange(6, 19)
NOW = time.time()
SND_ID, QUEUE_KEYS = b"s" * 24, generate_key_pair(Algorithm.X25519)
CORR_ID, COMMAND_KEYS = os.urandom(24), generate_key_pair(Algorithm.X25519)
SEND = smp.SEND(MsgFlags(True), b"hello")


def pkey(minimum: int = 8, maximum: int = 17, key: bytes = SESSION_KEYS.public) -> smp.PKEY:
    signed = sign_session_key(CREDENTIALS.private_key, key)
    auth = CertChainPubKey(CREDENTIALS.chain, signed)
    return smp.PKEY(bytes(32), VersionRange(minimum, maximum), auth)


def session(maximum: int = 17) -> ForwardingSession:
    return ForwardingSession.check(pkey(8, maximum), DESTINATION.fingerprint, OURS, NOW)


def answer(reply: smp.SmpResponse, corr_id: bytes = CORR_ID, entity: bytes = SND_ID) -> smp.PRES:
    """What the destination returns."""
    inner = Session.smp(bytes(32), 17)
    [content] = pack(inner, [encode_reply(inner, SMP.responses, corr_id, entity, reply)])
    secret = box_key(COMMAND_KEYS.public, SESSION_KEYS.private)
    return smp.PRES(seal_answer(secret, CORR_ID, content))


@pytest.mark.parametrize("version", [8, 10, 15, 16, 17])
@pytest.mark.parametrize("algorithm", [Algorithm.X25519, Algorithm.ED25519])
def test_the_destination_opens_and_verifies_it(version: int, algorithm: Algorithm) -> None:
    keys = generate_key_pair(algorithm)
    forwarded = session(version).seal(CORR_ID, COMMAND_KEYS, SEND, SND_ID, keys.private)
    assert (forwarded.version, forwarded.key) == (version, COMMAND_KEYS.public)
    assert len(forwarded.transmission) == 16242, "all commands look alike"
    secret = box_key(forwarded.key, SESSION_KEYS.private)
    inner = Session.smp(bytes(32), version)
    content = open_command(secret, CORR_ID, forwarded.transmission)
    [request] = decode_requests(inner, SMP.commands, content)
    assert isinstance(request, Request)
    assert (request.command, request.corr_id, request.entity_id) == (SEND, CORR_ID, SND_ID)
    assert verify_authorization(
        keys.public, SESSION_KEYS.private, CORR_ID, request.authorized, request.auth
    )


def test_the_answer_of_the_destination() -> None:
    opened = session().open(CORR_ID, COMMAND_KEYS, SEND, SND_ID, answer(smp.OK()))
    assert opened == smp.OK()
    with pytest.raises(RequestRefused) as refused:
        session().open(CORR_ID, COMMAND_KEYS, SEND, SND_ID, answer(smp.ERR(ErrorCode.QUOTA)))
    assert refused.value.error is ErrorCode.QUOTA


def damaged(answer: smp.PRES) -> smp.PRES:
    """Return an answer whose last byte is another."""
    return smp.PRES(answer.response[:-1] + bytes([answer.response[-1] ^ 1]))


@pytest.mark.parametrize(
    "wrong",
    [
        answer(smp.OK(), corr_id=b"c" * 24),
        answer(smp.OK(), entity=b"another queue of 24 byte"),
        answer(smp.NID(b"n" * 24, SESSION_KEYS.public)),
        damaged(answer(smp.OK())),
        smp.PRES(b""),
    ],
)
def test_what_is_no_answer(wrong: smp.PRES) -> None:
    with pytest.raises(UnexpectedReply):
        session().open(CORR_ID, COMMAND_KEYS, SEND, SND_ID, wrong)


def test_a_session_that_is_not_with_the_destination() -> None:
    with pytest.raises(ClientError, match="another router"):
        ForwardingSession.check(pkey(), bytes(32), OURS, NOW)
    key = generate_key_pair(Algorithm.ED25519).public
    with pytest.raises(ClientError, match="not an X25519"):
        ForwardingSession.check(pkey(key=key), DESTINATION.fingerprint, OURS, NOW)
    forged = smp.PKEY(bytes(32), VersionRange(8, 17), CertChainPubKey(CREDENTIALS.chain, b"0"))
    with pytest.raises(ClientError, match="not genuine"):
        ForwardingSession.check(forged, DESTINATION.fingerprint, OURS, NOW)


def test_versions() -> None:
    assert session(9).session.version == 9
    check = ForwardingSession.check
    assert check(pkey(), DESTINATION.fingerprint, VersionRange(6, 10), NOW).session.version == 10
    with pytest.raises(NoCommonVersion):
        check(pkey(8, 17), DESTINATION.fingerprint, VersionRange(6, 7), NOW)


def test_a_message_that_is_too_long() -> None:
    long = smp.SEND(MsgFlags(False), bytes(16_300))
    with pytest.raises(ClientError):
        session().seal(CORR_ID, COMMAND_KEYS, long, SND_ID, QUEUE_KEYS.private)
