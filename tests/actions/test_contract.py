from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.actions.contract import (
    MAX_CLOCK_SKEW,
    MAX_VALIDITY,
    ActionKind,
    MalformedAction,
    Refusal,
    check,
    decode_action,
)
from heliograph.actions.table import _row
from tests.actions.support import HOUR, NOW, ROUTER, SIGNER, altered, an_action, key_of


def test_a_signed_action_is_accepted_and_survives_the_table() -> None:
    action = an_action()
    assert check(action, ROUTER, SIGNER.public, NOW) is None
    assert decode_action(_row(action)) == action


def test_the_same_decision_has_the_same_id_whenever_it_is_made() -> None:
    later = an_action(decided_at=NOW + HOUR, valid_until=NOW + 2 * HOUR)
    assert later.action_id == an_action().action_id
    assert an_action(evidence={"window_end": 2}).action_id != later.action_id


@pytest.mark.parametrize(
    ("action", "refusal"),
    [
        (an_action(router="ff" * 8), Refusal.FOREIGN),
        (altered(an_action(), subject="22" * 16), Refusal.FORGED),
        (altered(an_action(), kind=ActionKind.DELETE_ORPHAN), Refusal.FORGED),
        (altered(an_action(), evidence="{}"), Refusal.FORGED),
        (altered(an_action(), valid_until=NOW + 2 * HOUR), Refusal.FORGED),
        (altered(an_action(), signature=b""), Refusal.FORGED),
        (an_action(signer=key_of("somebody else")), Refusal.FORGED),
        (an_action(valid_until=NOW), Refusal.STALE),
        (an_action(decided_at=NOW + MAX_CLOCK_SKEW + 1), Refusal.CLOCK),
        (an_action(valid_until=NOW + MAX_VALIDITY + 1), Refusal.CLOCK),
    ],
)
def test_an_action_is_refused(action: Any, refusal: Refusal) -> None:
    assert check(action, ROUTER, SIGNER.public, NOW) is refusal


def test_without_a_signer_content_and_times_still_count() -> None:
    assert check(an_action(signer=key_of("anybody")), ROUTER, None, NOW) is None
    assert check(altered(an_action(), subject="22" * 16), ROUTER, None, NOW) is Refusal.FORGED


GOOD = _row(an_action())
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=40),
    st.binary(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.datetimes(),
    st.just(datetime.now(UTC)),
)


@given(changes=st.dictionaries(st.sampled_from(sorted(GOOD)), VALUES, min_size=1))
def test_only_the_documented_exception_escapes_from_a_malformed_row(changes: Any) -> None:
    row = {**GOOD, **changes}
    try:
        action = decode_action(row)
    except MalformedAction:
        return
    # What can be decoded is still no action that was signed, unless nothing was changed.
    if row != GOOD:
        assert check(action, ROUTER, SIGNER.public, NOW) is not None


@given(missing=st.sets(st.sampled_from(sorted(GOOD)), min_size=1))
def test_a_row_without_a_column_is_malformed(missing: set[str]) -> None:
    with pytest.raises(MalformedAction):
        decode_action({name: value for name, value in GOOD.items() if name not in missing})


@pytest.mark.parametrize(
    "evidence",
    [
        '{"observed": 1e400}',
        '{"observed": NaN}',
        '{"baseline": -Infinity}',
        '{"at": 1000000000000000000000}',
        '{"finding": "\\ud800"}',
        '{"finding": ',
        "[]",
    ],
)
def test_evidence_that_no_store_can_have_is_malformed(evidence: str) -> None:
    with pytest.raises(MalformedAction):
        decode_action({**GOOD, "evidence": evidence})
