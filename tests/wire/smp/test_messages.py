import pytest
from hypothesis import given, strategies as st

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import pad
from heliograph.wire.smp import max_message_length
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.smp.messages import (
    RCV_MESSAGE_SIZE,
    RcvMessage,
    RcvQuota,
    decode_rcv_message,
    encode_rcv_message,
)
from tests import strategies as our


@given(our.rcv_messages)
def test_round_trip(message: RcvMessage | RcvQuota) -> None:
    assert decode_rcv_message(encode_rcv_message(message)) == message


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (RcvMessage(1700000000, MsgFlags(True), b"hi"), b"\0\0\0\0\x65\x53\xf1\0T hi"),
        (RcvMessage(0, MsgFlags(False), b""), bytes(8) + b"F "),
        (RcvQuota(1700000000), b"QUOTA \0\0\0\0\x65\x53\xf1\0"),
    ],
)
def test_exact_bytes(message: RcvMessage | RcvQuota, data: bytes) -> None:
    assert encode_rcv_message(message) == data
    assert decode_rcv_message(data) == message


@pytest.mark.parametrize(
    "data",
    [
        *(b"", bytes(7), bytes(8), bytes(8) + b"T", bytes(8) + b"X "),
        *(b"QUOTA ", b"QUOTA " + bytes(7), b"QUOTA " + bytes(9)),
    ],
)
def test_malformed(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode_rcv_message(data)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    try:
        message = decode_rcv_message(data)
    except WireError:
        return
    encode_rcv_message(message)


@pytest.mark.parametrize("version", our.SMP_VERSION_NUMBERS)
def test_the_longest_message_fits_the_box(version: int) -> None:
    message = RcvMessage(2**62, MsgFlags(True), bytes(max_message_length(version)))
    assert len(pad(encode_rcv_message(message), RCV_MESSAGE_SIZE)) == RCV_MESSAGE_SIZE
