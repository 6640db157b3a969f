"""Tests of `heliograph.wire.requests`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.wire import ntf, smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.ntf import NTF_COMMANDS, NTF_RESPONSES
from heliograph.wire.requests import (
    Failure,
    Reply,
    Request,
    decode_replies,
    decode_requests,
    encode_reply,
)
from heliograph.wire.smp import SMP_COMMANDS, SMP_RESPONSES
from heliograph.wire.table import OK, PING, PONG, Table
from heliograph.wire.transmissions import (
    Session,
    authorized_bytes,
    encode_transmission,
    pack,
)

SESSION_ID = b"i" * 32
NTF = Session.ntf(SESSION_ID, 3)
NTF_V1 = Session.ntf(SESSION_ID, 1)
SMP = Session.smp(SESSION_ID, 19)
SMP_V6 = Session.smp(SESSION_ID, 6)
CORR, ENTITY = b"c" * 24, b"e" * 24
BLOCK = Failure(b"", b"", ErrorCode.BLOCK)

SIDES = [
    (NTF, NTF_COMMANDS, NTF_RESPONSES),
    (NTF_V1, NTF_COMMANDS, NTF_RESPONSES),
    (SMP, SMP_COMMANDS, SMP_RESPONSES),
    (SMP_V6, SMP_COMMANDS, SMP_RESPONSES),
]
sides = pytest.mark.parametrize(("session", "commands", "responses"), SIDES)


def batch(*transmissions: bytes) -> bytes:
    (content,) = pack(NTF, transmissions)
    return content


def transmission(
    command: bytes,
    corr_id: bytes = CORR,
    entity_id: bytes = b"",
    auth: bytes = b"",
    session: Session = NTF,
    service_signature: bytes | None = None,
) -> bytes:
    return encode_transmission(session, corr_id, entity_id, command, auth, service_signature)


PING_DATA = transmission(b"PING")
PING_REQUEST = Request(CORR, b"", PING(), b"", None, authorized_bytes(NTF, CORR, b"", b"PING"))


@sides
def test_request(session: Session, commands: Table, responses: Table) -> None:
    (content,) = pack(session, [transmission(b"PING", session=session)])
    authorized = authorized_bytes(session, CORR, b"", b"PING")
    assert decode_requests(session, commands, content) == [
        Request(CORR, b"", PING(), b"", None, authorized)
    ]


@sides
def test_reply(session: Session, commands: Table, responses: Table) -> None:
    (content,) = pack(session, [encode_reply(session, responses, CORR, ENTITY, OK())])
    assert decode_replies(session, responses, content) == [Reply(CORR, ENTITY, OK())]


def test_authorized_request() -> None:
    data = transmission(b"TCHK", CORR, ENTITY, b"s" * 64)
    authorized = authorized_bytes(NTF, CORR, ENTITY, b"TCHK")
    assert decode_requests(NTF, NTF_COMMANDS, batch(data)) == [
        Request(CORR, ENTITY, ntf.TCHK(), b"s" * 64, None, authorized)
    ]


@pytest.mark.parametrize("signature", [None, b"t" * 64])
def test_service_signature(signature: bytes | None) -> None:
    data = transmission(b"NSUB", CORR, ENTITY, b"s" * 64, SMP, signature)
    (request,) = decode_requests(SMP, SMP_COMMANDS, batch(data))
    assert isinstance(request, Request)
    assert request.command == smp.NSUB()
    assert request.service_signature == signature


def test_one_bad_transmission_in_a_sound_batch() -> None:
    other = transmission(b"PING", b"d" * 24)
    content = batch(PING_DATA, b"\xff", other)
    first, bad, last = decode_requests(NTF, NTF_COMMANDS, content)
    assert first == PING_REQUEST
    assert bad == BLOCK
    assert isinstance(last, Request)
    assert last.corr_id == b"d" * 24


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\1",
        b"\2" + batch(PING_DATA)[1:],
        batch(PING_DATA) + b"x",
        batch(PING_DATA)[:-1],
        b"\1\xff\xff" + PING_DATA,
    ],
    ids=["empty", "none", "only a count", "too many", "trailing", "truncated", "length"],
)
def test_malformed_batch(content: bytes) -> None:
    assert decode_requests(NTF, NTF_COMMANDS, content) == [BLOCK]
    assert decode_replies(NTF, NTF_RESPONSES, content) == [BLOCK]


@pytest.mark.parametrize("size", [1, 63, 65, 79, 81, 113, 115, 255])
def test_authorization_of_unknown_length_echoes_the_correlation_id(size: int) -> None:
    content = batch(transmission(b"TCHK", CORR, ENTITY, b"s" * size))
    assert decode_requests(NTF, NTF_COMMANDS, content) == [Failure(CORR, b"", ErrorCode.BLOCK)]
    assert decode_replies(NTF, NTF_RESPONSES, content) == [Failure(CORR, b"", ErrorCode.BLOCK)]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"", ErrorCode.CMD_UNKNOWN),
        (b"PANG", ErrorCode.CMD_UNKNOWN),
        (b"PING ", ErrorCode.CMD_SYNTAX),
        (b"TVFY", ErrorCode.CMD_SYNTAX),
    ],
)
def test_malformed_command(command: bytes, error: ErrorCode) -> None:
    content = batch(transmission(command, CORR, ENTITY))
    assert decode_requests(NTF, NTF_COMMANDS, content) == [Failure(CORR, ENTITY, error)]


@pytest.mark.parametrize(
    ("command", "entity_id", "auth", "error"),
    [
        (b"TCHK", ENTITY, b"", ErrorCode.CMD_NO_AUTH),
        (b"TCHK", b"", b"s" * 64, ErrorCode.CMD_NO_AUTH),
        (b"PING", ENTITY, b"", ErrorCode.CMD_HAS_AUTH),
        (b"PING", b"", b"s" * 64, ErrorCode.CMD_HAS_AUTH),
    ],
)
def test_credentials(command: bytes, entity_id: bytes, auth: bytes, error: ErrorCode) -> None:
    content = batch(transmission(command, CORR, entity_id, auth))
    assert decode_requests(NTF, NTF_COMMANDS, content) == [Failure(CORR, entity_id, error)]


@pytest.mark.parametrize("size", [0, 1, 24, 255])
def test_correlation_id_of_any_length(size: int) -> None:
    (request,) = decode_requests(NTF, NTF_COMMANDS, batch(transmission(b"PING", b"c" * size)))
    assert isinstance(request, Request)
    assert request.corr_id == b"c" * size


@pytest.mark.parametrize(("session", "commands"), [(NTF_V1, NTF_COMMANDS), (SMP_V6, SMP_COMMANDS)])
def test_foreign_session(session: Session, commands: Table) -> None:
    foreign = Session.ntf(b"j" * 32, 1)
    (content,) = pack(session, [transmission(b"PING", session=foreign)])
    assert decode_requests(session, commands, content) == [Failure(CORR, b"", ErrorCode.SESSION)]


def test_reply_that_makes_no_sense() -> None:
    for command, entity_id, error in (
        (b"NONE", ENTITY, ErrorCode.CMD_UNKNOWN),
        (b"OK", b"", ErrorCode.CMD_NO_ENTITY),
        (b"PONG", ENTITY, ErrorCode.CMD_HAS_AUTH),
    ):
        content = batch(transmission(command, CORR, entity_id))
        assert decode_replies(NTF, NTF_RESPONSES, content) == [Failure(CORR, entity_id, error)]


def test_push_has_no_correlation_id() -> None:
    content = batch(encode_reply(SMP, SMP_RESPONSES, b"", ENTITY, smp.END()))
    assert decode_replies(SMP, SMP_RESPONSES, content) == [Reply(b"", ENTITY, smp.END())]


def test_reply_is_encoded_for_the_version() -> None:
    assert encode_reply(SMP, SMP_RESPONSES, CORR, ENTITY, smp.SOK()).endswith(b"SOK 0")
    assert encode_reply(SMP_V6, SMP_RESPONSES, CORR, ENTITY, smp.SOK()).endswith(b"OK")
    assert encode_reply(NTF, NTF_RESPONSES, CORR, b"", PONG()).endswith(b"PONG")


@sides
@given(content=st.binary(max_size=512))
def test_garbage(session: Session, commands: Table, responses: Table, content: bytes) -> None:
    for item in decode_requests(session, commands, content):
        assert isinstance(item, Request | Failure)
    for reply in decode_replies(session, responses, content):
        assert isinstance(reply, Reply | Failure)


@sides
@given(data=st.data())
def test_mutated_block(
    session: Session, commands: Table, responses: Table, data: st.DataObject
) -> None:
    one = transmission(b"PING", session=session)
    two = encode_reply(session, responses, CORR, ENTITY, OK())
    block = bytearray(pack(session, [one, two])[0])
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    assert decode_requests(session, commands, bytes(block))
    assert decode_replies(session, responses, bytes(block))
