from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.wire import ntf, smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.requests import (
    Failure,
    Reply,
    Request,
    decode_replies,
    decode_requests,
    encode_reply,
)
from heliograph.wire.table import Table
from heliograph.wire.transmissions import Session, authorized_bytes, encode_transmission, pack
from tests import strategies as our

SESSION = Session.ntf(bytes(32), 3)
SMP = Session.smp(bytes(32), 18)
AUTH = b"a" * 64


def sent(corr_id: bytes, entity_id: bytes, command: bytes, auth: bytes = b"") -> bytes:
    return encode_transmission(SESSION, corr_id, entity_id, command, auth)


def requests(*transmissions: bytes) -> list[Request[Any] | Failure]:
    (content,) = pack(SESSION, transmissions)
    return decode_requests(SESSION, ntf.NTF_COMMANDS, content)


def test_one_bad_transmission_does_not_spoil_its_neighbours() -> None:
    first, bad, last = requests(
        sent(b"1", b"", b"PING"), b"garbage", sent(b"3", b"id", b"TCHK", AUTH)
    )
    assert isinstance(first, Request)
    assert first.command == ntf.PING()
    assert bad == Failure(b"", b"", ErrorCode.BLOCK)
    assert last == Request(
        *(b"3", b"id", ntf.TCHK(), AUTH, None),
        authorized_bytes(SESSION, b"3", b"id", b"TCHK"),
    )


@pytest.mark.parametrize(
    ("transmission", "failure"),
    [
        (sent(b"c", b"e", b"WHAT"), Failure(b"c", b"e", ErrorCode.CMD_UNKNOWN)),
        (sent(b"c", b"e", b""), Failure(b"c", b"e", ErrorCode.CMD_UNKNOWN)),
        (sent(b"c", b"e", b"TVFY"), Failure(b"c", b"e", ErrorCode.CMD_SYNTAX)),
        (sent(b"c", b"e", b"TCHK"), Failure(b"c", b"e", ErrorCode.CMD_NO_AUTH)),
        (sent(b"c", b"", b"TCHK", AUTH), Failure(b"c", b"", ErrorCode.CMD_NO_AUTH)),
        (sent(b"c", b"e", b"PING"), Failure(b"c", b"e", ErrorCode.CMD_HAS_AUTH)),
        (sent(b"c", b"e", b"TCHK", b"a" * 9), Failure(b"c", b"", ErrorCode.BLOCK)),
    ],
)
def test_failures(transmission: bytes, failure: Failure) -> None:
    assert requests(transmission) == [failure]


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x01\x00\x05hell"])
def test_a_malformed_batch_is_one_failure(content: bytes) -> None:
    failure = Failure(b"", b"", ErrorCode.BLOCK)
    assert decode_requests(SESSION, ntf.NTF_COMMANDS, content) == [failure]
    assert decode_replies(SESSION, ntf.NTF_RESPONSES, content) == [failure]


def test_a_foreign_session() -> None:
    content = encode_transmission(Session.ntf(b"x" * 32, 1), b"c", b"", b"PING")
    decoded = decode_requests(Session.ntf(bytes(32), 1), ntf.NTF_COMMANDS, content)
    assert decoded == [Failure(b"c", b"", ErrorCode.SESSION)]


@given(st.data())
def test_replies_round_trip(data: st.DataObject) -> None:
    tables: list[tuple[Session, Table[Any]]] = [
        (SESSION, ntf.NTF_RESPONSES),
        (SMP, smp.SMP_RESPONSES),
    ]
    session, table = data.draw(st.sampled_from(tables))
    strategies = our.NTF_RESPONSES if table is ntf.NTF_RESPONSES else our.SMP_RESPONSES
    message = data.draw(st.one_of(list(strategies.values())))
    corr_id = data.draw(our.shorts)
    entity_id = b"" if type(message) in NO_ENTITY else b"e"
    encoded = encode_reply(session, table, corr_id, entity_id, message)
    if len(encoded) > 491:
        return
    (content,) = pack(session, [encoded])
    expected = message
    if isinstance(message, smp.SOKS | smp.ENDS):
        expected = type(message)(message.count)
    assert decode_replies(session, table, content) == [Reply(corr_id, entity_id, expected)]


NO_ENTITY = {ntf.IDTKN, ntf.IDSUB, ntf.PONG, smp.ALLS, smp.PKEY, smp.RRES}


@pytest.mark.parametrize(
    ("entity_id", "command", "error"),
    [
        (b"e", b"PONG", ErrorCode.CMD_HAS_AUTH),
        (b"", b"OK", ErrorCode.CMD_NO_ENTITY),
        (b"e", b"WHAT", ErrorCode.CMD_UNKNOWN),
        (b"e", b"TKN WHAT", ErrorCode.CMD_SYNTAX),
    ],
)
def test_reply_failures(entity_id: bytes, command: bytes, error: ErrorCode) -> None:
    (content,) = pack(SESSION, [sent(b"c", entity_id, command), b"garbage"])
    assert decode_replies(SESSION, ntf.NTF_RESPONSES, content) == [
        Failure(b"c", entity_id, error),
        Failure(b"", b"", ErrorCode.BLOCK),
    ]


@given(st.binary(max_size=200))
def test_any_content_is_answered(content: bytes) -> None:
    assert decode_requests(SMP, smp.SMP_COMMANDS, content)
    assert decode_replies(SMP, smp.SMP_RESPONSES, content)
