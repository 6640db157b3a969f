import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.wire import table
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import Codec, Reader
from heliograph.wire.smp import fields
from heliograph.wire.smp.fields import (
    MsgFlags,
    QueueInfo,
    QueueLink,
    QueueMode,
    QueueReqData,
    SubscriptionMode,
)
from tests import strategies as our
from tests.wire.attempt import attempt

CODECS: dict[str, tuple[Codec[Any], st.SearchStrategy[Any]]] = {
    "error_type": (table.error_type, our.error_types),
    "msg_flags": (fields.msg_flags, our.flags),
    "subscription_mode": (fields.subscription_mode, st.sampled_from(SubscriptionMode)),
    "queue_mode": (fields.queue_mode, st.sampled_from(QueueMode)),
    "queue_request": (fields.queue_request, our.queue_requests),
    "sender_can_secure_request": (
        fields.sender_can_secure_request,
        st.builds(QueueReqData, st.sampled_from(QueueMode)),
    ),
    "sender_can_secure": (fields.sender_can_secure, st.sampled_from(QueueMode)),
    "password": (fields.password, st.none() | our.password_bytes),
    "legacy_password": (fields.legacy_password, st.none() | our.password_bytes),
    "new_ntf_creds": (fields.new_ntf_creds, st.none() | our.new_ntf_creds),
    "server_ntf_creds": (fields.server_ntf_creds, st.none() | our.server_ntf_creds),
    "queue_info": (fields.queue_info, our.queue_infos),
}
CANONICAL = set(CODECS) - {"error_type", "msg_flags", "queue_info"}


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    codec, values = CODECS[name]
    value = data.draw(values)
    reader = Reader(codec.encode(value))
    assert codec.decode(reader) == value
    reader.end()


@pytest.mark.parametrize("name", CODECS)
@given(data=st.binary(max_size=60))
def test_any_bytes(name: str, data: bytes) -> None:
    codec, _ = CODECS[name]
    reader = Reader(data)
    value, error = attempt(codec.decode, reader)
    if error is not None:
        assert error is ErrorCode.CMD_SYNTAX
        return
    encoded = codec.encode(value)
    assert codec.decode(Reader(encoded)) == value
    if name in CANONICAL:
        assert encoded == data[: reader.pos]


@pytest.mark.parametrize(
    ("codec", "value", "expected"),
    [
        (fields.msg_flags, MsgFlags(True), b"T "),
        (fields.msg_flags, MsgFlags(False), b"F "),
        (fields.subscription_mode, SubscriptionMode.SUBSCRIBE, b"S"),
        (fields.subscription_mode, SubscriptionMode.CREATE_ONLY, b"C"),
        (fields.queue_request, QueueReqData(QueueMode.MESSAGING), b"M0"),
        (fields.queue_request, QueueReqData(QueueMode.CONTACT), b"C0"),
        (
            fields.queue_request,
            QueueReqData(QueueMode.MESSAGING, QueueLink(b"", b"s", b"f", b"u")),
            b"M1\x01s\x00\x01f\x00\x01u",
        ),
        (
            fields.queue_request,
            QueueReqData(QueueMode.CONTACT, QueueLink(b"l", b"s", b"f", b"u")),
            b"C1\x01l\x01s\x00\x01f\x00\x01u",
        ),
        (fields.sender_can_secure_request, QueueReqData(QueueMode.MESSAGING), b"T"),
        (fields.sender_can_secure_request, QueueReqData(QueueMode.CONTACT), b"F"),
        (fields.sender_can_secure, QueueMode.MESSAGING, b"T"),
        (fields.sender_can_secure, QueueMode.CONTACT, b"F"),
        (fields.password, None, b"0"),
        (fields.password, b"pw", b"1\x02pw"),
        (fields.legacy_password, None, b""),
        (fields.legacy_password, b"pw", b"A\x02pw"),
    ],
)
def test_exact_bytes(codec: Codec[Any], value: object, expected: bytes) -> None:
    assert codec.encode(value) == expected
    assert codec.decode(Reader(expected)) == value


def test_no_request_reads_as_a_contact_queue() -> None:
    assert fields.sender_can_secure_request.encode(None) == b"F"
    assert fields.sender_can_secure.encode(None) == b"F"


def test_flags_of_later_versions_are_skipped() -> None:
    reader = Reader(b"Txyz body")
    assert fields.msg_flags.decode(reader) == MsgFlags(True)
    assert reader.tail() == b"body"


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (fields.msg_flags, b""),
        (fields.msg_flags, b"T"),
        (fields.msg_flags, b"Txyz"),
        (fields.msg_flags, b"X "),
        (fields.subscription_mode, b"X"),
        (fields.subscription_mode, b""),
        (fields.queue_mode, b"X"),
        (fields.queue_request, b"X0"),
        (fields.queue_request, b"M"),
        (fields.queue_request, b"M1\x00"),
        (fields.sender_can_secure, b"M"),
        (fields.password, b"1\x01@"),
        (fields.password, b"1\x01 "),
        (fields.password, b"1\x01\xad"),
        (fields.legacy_password, b"A\x03a:b"),
        (fields.legacy_password, b"A"),
        (fields.new_ntf_creds, b"1\x00\x00"),
        (fields.server_ntf_creds, b"1\x00\x00"),
        (table.error_type, b"WHAT"),
        (fields.queue_info, b""),
        (fields.queue_info, b"[]"),
        (fields.queue_info, b"[" * 100_000),
        (fields.queue_info, b"\xff"),
        (fields.queue_info, b"{}"),
        (fields.queue_info, b'{"qiSnd":1,"qiNtf":false,"qiSize":0}'),
        (fields.queue_info, b'{"qiSnd":true,"qiNtf":false,"qiSize":true}'),
        (fields.queue_info, b'{"qiSnd":true,"qiNtf":false,"qiSize":1.5}'),
        (fields.queue_info, b'{"qiSnd":true,"qiNtf":false,"qiSize":0,"qiSub":1}'),
        (fields.queue_info, b'{"qiSnd":true,"qiNtf":false,"qiSize":0,"qiMsg":{"msgId":1}}'),
    ],
)
def test_malformed(codec: Codec[Any], data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        codec.decode(Reader(data))
    assert caught.value.error is ErrorCode.CMD_SYNTAX


def test_queue_info_is_json_in_the_order_of_the_reference() -> None:
    sub = {"qSubThread": "subPending"}
    msg = {"msgId": "aWQ=", "msgTs": "2026-01-01T00:00:00Z", "msgType": "message"}
    info = QueueInfo(True, False, 3, sub, msg)
    encoded = fields.queue_info.encode(info)
    expected = {"qiSub": sub, "qiMsg": msg, "qiSnd": True, "qiNtf": False, "qiSize": 3}
    assert json.loads(encoded) == expected
    assert list(json.loads(encoded)) == list(expected)
    assert b" " not in encoded
    bare = fields.queue_info.encode(QueueInfo(True, False, 3))
    assert bare == b'{"qiSnd":true,"qiNtf":false,"qiSize":3}'


def test_queue_info_keeps_half_characters() -> None:
    data = b'{"qiSnd":true,"qiNtf":false,"qiSize":0,"qiSub":{"x":"\\ud800"}}'
    info = fields.queue_info.decode(Reader(data))
    assert fields.queue_info.decode(Reader(fields.queue_info.encode(info))) == info
