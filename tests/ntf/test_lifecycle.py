import itertools

import pytest

from heliograph.ntf.lifecycle import (
    Rejected,
    TokenEvent,
    TokenTransition,
    may_subscribe,
    may_verify,
    step,
)
from heliograph.wire.ntf.tokens import InvalidReason, TokenStatus as S

AGAIN, DELIVERED = TokenTransition.REGISTERED_AGAIN, TokenTransition.VERIFICATION_ACCEPTED
VERIFIED, REPLACED = TokenTransition.VERIFIED, TokenTransition.REPLACED
INVALID = (
    S.INVALID,
    S.INVALID_BAD,
    S.INVALID_TOPIC,
    S.INVALID_EXPIRED,
    S.INVALID_UNREGISTERED,
)

# Rows are states, columns are events, as a client and a provider would see them.
TABLE = {
    #                AGAIN         DELIVERED    VERIFIED     REPLACED
    S.NEW: (S.REGISTERED, S.NEW, S.NEW, S.REGISTERED),
    S.REGISTERED: (S.REGISTERED, S.CONFIRMED, S.ACTIVE, S.REGISTERED),
    S.CONFIRMED: (S.CONFIRMED, S.CONFIRMED, S.ACTIVE, S.REGISTERED),
    S.ACTIVE: (S.ACTIVE, S.ACTIVE, S.ACTIVE, S.REGISTERED),
    S.EXPIRED: (S.REGISTERED, S.EXPIRED, S.EXPIRED, S.REGISTERED),
    **{status: (S.REGISTERED, status, status, S.REGISTERED) for status in INVALID},
}
REJECTED = {
    InvalidReason.BAD: S.INVALID_BAD,
    InvalidReason.TOPIC: S.INVALID_TOPIC,
    InvalidReason.EXPIRED: S.INVALID_EXPIRED,
    InvalidReason.UNREGISTERED: S.INVALID_UNREGISTERED,
}
EVENTS: tuple[TokenEvent, ...] = (AGAIN, DELIVERED, VERIFIED, REPLACED)
PAIRS = [
    *(
        (status, event, after)
        for status in S
        for event, after in zip(EVENTS, TABLE[status], strict=True)
    ),
    *((status, Rejected(reason), after) for status in S for reason, after in REJECTED.items()),
]


@pytest.mark.parametrize(("status", "event", "after"), PAIRS)
def test_every_pair(status: S, event: TokenEvent, after: S) -> None:
    assert step(status, event) is after


def test_the_table_has_every_pair() -> None:
    events = [*TokenTransition, *map(Rejected, InvalidReason)]
    assert {(status, event) for status, event, _ in PAIRS} == set(itertools.product(S, events))


@pytest.mark.parametrize("status", S)
def test_what_is_allowed(status: S) -> None:
    assert may_verify(status) == (status in (S.REGISTERED, S.CONFIRMED, S.ACTIVE))
    assert may_subscribe(status) == (status in (S.ACTIVE, S.EXPIRED, *INVALID))


@pytest.mark.parametrize("status", S)
def test_a_code_is_of_use_exactly_where_it_is_accepted(status: S) -> None:
    assert (step(status, VERIFIED) is S.ACTIVE) == may_verify(status)
