import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from heliograph.wire.addresses import Host, HostKind, Scheme, ServerAddress, SMPQueueNtf
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.ntf import push
from heliograph.wire.ntf.push import (
    CheckMessagesPush,
    MessagePush,
    NMsgMeta,
    PNMessageData,
    Push,
    VerificationPush,
)
from tests import strategies as our

NONCE = bytes(24)
SERVER = ServerAddress(Scheme.SMP, (Host(HostKind.DOMAIN, "a.example"),), "", bytes(32))
MESSAGE = PNMessageData(SMPQueueNtf(SERVER, b"id"), 1700000000, NONCE, b"meta")
MESSAGE_TEXT = (
    "smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@a.example/aWQ= 1700000000 "
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA bWV0YQ=="
)


# NMsgMeta


@given(our.nmsg_metas, st.binary(max_size=20))
def test_meta_round_trip(meta: NMsgMeta, tail: bytes) -> None:
    assert push.decode_nmsg_meta(push.encode_nmsg_meta(meta) + tail) == meta


def test_meta_exact_bytes() -> None:
    assert push.encode_nmsg_meta(NMsgMeta(b"id", 1)) == b"\x02id" + bytes(7) + b"\x01"


@pytest.mark.parametrize("data", [b"", b"\x02i", b"\x02id" + bytes(7)])
def test_meta_malformed(data: bytes) -> None:
    with pytest.raises(WireError):
        push.decode_nmsg_meta(data)


# PNMessageData


@given(st.lists(our.pn_messages, min_size=1, max_size=6))
def test_list_round_trip(messages: list[PNMessageData]) -> None:
    assert push.decode_pn_messages(push.encode_pn_messages(messages)) == messages


def test_list_exact_text() -> None:
    assert push.encode_pn_messages([MESSAGE]).decode() == MESSAGE_TEXT
    assert push.encode_pn_messages([MESSAGE] * 2).decode() == f"{MESSAGE_TEXT};{MESSAGE_TEXT}"


def test_time_before_the_epoch() -> None:
    text = MESSAGE_TEXT.replace(" 1700000000 ", " -1 ")
    (message,) = push.decode_pn_messages(text.encode())
    assert message.timestamp == -1
    assert push.encode_pn_messages([message]).decode() == text


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ";", f"{MESSAGE_TEXT};", f"{MESSAGE_TEXT} x", MESSAGE_TEXT.replace(" ", "  ")),
        *(MESSAGE_TEXT.replace("17", "x"), MESSAGE_TEXT.replace(" 17", " --17")),
        *(MESSAGE_TEXT.replace(" 1700000000 ", f" {digits} ") for digits in ("", "-", "1" * 20)),
        *(MESSAGE_TEXT.replace("smp://", "ntf://"), MESSAGE_TEXT.replace("/aWQ=", "")),
        *(MESSAGE_TEXT.replace("bWV0YQ==", "!"), MESSAGE_TEXT.replace("a.example", "é")),
    ],
)
def test_list_malformed(text: str) -> None:
    with pytest.raises(WireError) as caught:
        push.decode_pn_messages(text.encode())
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@given(st.binary(max_size=60))
def test_list_of_any_bytes(data: bytes) -> None:
    with pytest.raises(WireError):
        push.decode_pn_messages(data)


# JSON


@given(our.pushes)
def test_push_round_trip(value: Push) -> None:
    assert push.decode_push(push.encode_apns(value)) == value
    data = json.dumps(push.notification_data(value)).encode()
    assert push.decode_push(data) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            VerificationPush(NONCE, b"box"),
            (
                '{"notificationData":{"nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","verification":"Ym94"},'
                '"aps":{"content-available":1}}'
            ),
        ),
        (
            MessagePush(NONCE, b"box"),
            (
                '{"notificationData":{"message":"Ym94","nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},'
                '"aps":{"category":"NTF_CAT_CHECK_MESSAGE","mutable-content":1,'
                '"alert":"Encrypted message or another app event"}}'
            ),
        ),
        (
            CheckMessagesPush(),
            '{"notificationData":{"checkMessages":true},"aps":{"content-available":1}}',
        ),
    ],
)
def test_apns_exact_body(value: Push, expected: str) -> None:
    assert push.encode_apns(value).decode() == expected
    assert push.decode_push(expected.encode()) == value


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff", b"[]", b"1", b"{}", b"[" * 100_000, b'{"notificationData":1}'),
        *(b'{"nonce":"bg=="}', b'{"nonce":1,"message":"bg=="}', b'{"message":"bg=="}'),
        *(b'{"nonce":"","message":"bg=="}', b'{"nonce":"bg==","verification":"!"}'),
        *(b'{"checkMessages":false}', b'{"checkMessages":1}'),
    ],
)
def test_push_malformed(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        push.decode_push(data)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@pytest.mark.parametrize(
    ("sent", "received"), [(b"n", b"n" + bytes(23)), (b"n" * 30, b"n" * 24), (NONCE, NONCE)]
)
def test_a_nonce_of_another_length_is_cut_or_filled(sent: bytes, received: bytes) -> None:
    for kind in (VerificationPush, MessagePush):
        assert push.decode_push(push.encode_apns(kind(sent, b"box"))) == kind(received, b"box")
    text = push.encode_pn_messages([replace(MESSAGE, nonce=sent)])
    assert push.decode_pn_messages(text) == [replace(MESSAGE, nonce=received)]
