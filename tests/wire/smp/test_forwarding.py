"""The contents of RFWD and RRES; the commands are tested with their table."""

from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from heliograph.wire.errors import ErrorCode
from heliograph.wire.smp.forwarding import (
    ForwardedResponse,
    ForwardedTransmission,
    decode_forwarded,
    decode_forwarded_response,
    encode_forwarded,
    encode_forwarded_response,
)
from tests import strategies as our
from tests.wire.attempt import attempt

transmissions = st.builds(
    ForwardedTransmission, our.shorts, st.integers(0, 65535), our.x25519_keys, our.bodies
)
responses = st.builds(ForwardedResponse, our.shorts, our.bodies)


@given(transmissions)
def test_transmission_round_trip(forwarded: ForwardedTransmission) -> None:
    assert decode_forwarded(encode_forwarded(forwarded)) == forwarded


@given(responses)
def test_response_round_trip(forwarded: ForwardedResponse) -> None:
    assert decode_forwarded_response(encode_forwarded_response(forwarded)) == forwarded


def test_exact_bytes() -> None:
    key = bytes.fromhex("302a300506032b656e032100") + bytes(32)
    forwarded = ForwardedTransmission(b"corr", 17, key, b"box")
    assert encode_forwarded(forwarded) == b"\x04corr\x00\x11\x2c" + key + b"box"
    assert encode_forwarded_response(ForwardedResponse(b"corr", b"box")) == b"\x04corrbox"


@pytest.mark.parametrize("data", [b"", b"\x04co", b"\x00\x00", b"\x00\x00\x11\x01x"])
def test_malformed_transmission(data: bytes) -> None:
    _, error = attempt(decode_forwarded, data)
    assert error is ErrorCode.CMD_SYNTAX


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    forwarded, error = attempt(decode_forwarded, data)
    assert error is ErrorCode.CMD_SYNTAX or encode_forwarded(cast(Any, forwarded)) == data
    response, error = attempt(decode_forwarded_response, data)
    assert error is ErrorCode.CMD_SYNTAX or encode_forwarded_response(cast(Any, response)) == data
