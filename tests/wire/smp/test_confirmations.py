"""Correlation IDs that confirm notifications."""

import pytest
from hypothesis import given, strategies as st

from heliograph.wire.smp.confirmations import (
    MARK,
    MAX_COUNT,
    decode_confirmation,
    encode_confirmation,
)


@given(st.integers(0, MAX_COUNT))
def test_a_count_survives(count: int) -> None:
    encoded = encode_confirmation(count)
    assert len(encoded) == 24  # as long as any correlation ID
    assert decode_confirmation(encoded) == count


@given(st.binary(min_size=24, max_size=24).filter(lambda corr_id: not corr_id.startswith(MARK)))
def test_other_correlation_ids_confirm_nothing(corr_id: bytes) -> None:
    assert decode_confirmation(corr_id) is None


@pytest.mark.parametrize("corr_id", [b"", MARK, MARK + bytes(7), MARK + bytes(9)])
def test_other_lengths_confirm_nothing(corr_id: bytes) -> None:
    assert decode_confirmation(corr_id) is None
