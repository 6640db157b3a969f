"""Boxes of private routing: what fits, what does not open, and that all commands look alike."""

import pytest
from hypothesis import given, strategies as st

from heliograph.crypto import forwarding
from heliograph.crypto.boxes import TAG_SIZE, box_with
from heliograph.crypto.errors import CryptoError
from heliograph.wire.errors import WireError
from heliograph.wire.smp.forwarding import FORWARDED_SIZE, ForwardedResponse, ForwardedTransmission

KEY, CORR_ID = bytes(range(32)), bytes(range(24))
SPKI = bytes.fromhex("302a300506032b656e032100") + bytes(32)


@given(st.binary(max_size=300), st.binary(max_size=40))
def test_command_and_answer(content: bytes, corr_id: bytes) -> None:
    sealed = forwarding.seal_command(KEY, corr_id, content)
    assert len(sealed) == FORWARDED_SIZE + TAG_SIZE
    assert forwarding.open_command(KEY, corr_id, sealed) == content
    answer = forwarding.seal_answer(KEY, corr_id, content)
    assert len(answer) == len(sealed)
    assert forwarding.open_answer(KEY, corr_id, answer) == content


def test_an_answer_is_no_command() -> None:
    with pytest.raises(CryptoError):
        forwarding.open_command(KEY, CORR_ID, forwarding.seal_answer(KEY, CORR_ID, b""))


def test_largest_content() -> None:
    largest = bytes(FORWARDED_SIZE - 2)
    assert forwarding.open_command(KEY, b"", forwarding.seal_command(KEY, b"", largest)) == largest
    for seal in (forwarding.seal_command, forwarding.seal_answer):
        with pytest.raises(CryptoError):
            seal(KEY, b"", largest + b"x")


def test_malformed_padding() -> None:
    for padded in (b"", b"\0\2x"):
        with pytest.raises(CryptoError):
            forwarding.open_command(KEY, CORR_ID, box_with(KEY, CORR_ID, padded))


def test_other_padded_sizes_are_opened() -> None:
    assert forwarding.open_command(KEY, CORR_ID, box_with(KEY, CORR_ID, b"\0\1x##")) == b"x"


def test_forwarded() -> None:
    forwarded = ForwardedTransmission(b"corr", 17, SPKI, b"box")
    sealed = forwarding.seal_forwarded(KEY, CORR_ID, forwarded)
    assert forwarding.open_forwarded(KEY, CORR_ID, sealed) == forwarded
    with pytest.raises(CryptoError):
        forwarding.open_forwarded(bytes(32), CORR_ID, sealed)
    with pytest.raises(WireError):
        forwarding.open_forwarded(KEY, CORR_ID, box_with(KEY, CORR_ID, b"\0"))
    response = ForwardedResponse(b"corr", b"box")
    sealed = forwarding.seal_response(KEY, CORR_ID, response)
    assert forwarding.open_response(KEY, CORR_ID, sealed) == response
    with pytest.raises(CryptoError):
        forwarding.open_response(KEY, CORR_ID[::-1], sealed)
