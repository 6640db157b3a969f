"""Every phase of the token machine meets every input."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.agent.ntf_records import NotificationsMode, NtfToken, TokenAction
from heliograph.agent.token_machine import (
    Ask,
    Checked,
    Code,
    Create,
    Cron,
    CronSet,
    Do,
    Effect,
    Input,
    Phase,
    Prohibited,
    QueueDeletion,
    Refused,
    Registered,
    Replaced,
    Request,
    Send,
    SetMode,
    Simple,
    Step,
    phase,
    step,
)
from heliograph.crypto.keys import generate_key_pair
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.tokens import APNSDeviceToken, PushProvider, TokenStatus

INSTANT, PERIODIC, OFF = NotificationsMode
S = TokenStatus
HERE = ServerAddress(Scheme.NTF, (decode_host("127.0.0.1"),), "443", bytes(32))
MOVED = replace(HERE, port="444")
ELSEWHERE = replace(HERE, fingerprint=bytes([1]) * 32)
DEVICE = APNSDeviceToken(PushProvider.APNS_TEST, b"aa")
OTHER = APNSDeviceToken(PushProvider.APNS_TEST, b"bb")
ID, SECRET, CODE = b"i" * 24, b"s" * 32, b"c" * 32

NEW = NtfToken(
    DEVICE,
    HERE,
    generate_key_pair(Algorithm.ED25519),
    generate_key_pair(Algorithm.X25519),
    INSTANT,
)
WAITING = replace(NEW, token_id=ID, dh_secret=SECRET, status=S.REGISTERED, action=None)
VERIFYING = replace(WAITING, status=S.CONFIRMED, action=TokenAction.VERIFY, code=CODE)
ACTIVE = replace(WAITING, status=S.ACTIVE, action=TokenAction.CHECK)
TOKENS = {
    Phase.ABSENT: None,
    Phase.REGISTERING: NEW,
    Phase.WAITING: WAITING,
    Phase.VERIFYING: VERIFYING,
    Phase.CHECKING: ACTIVE,
}

SAME = Ask(DEVICE, INSTANT, HERE)
CHANGED = Ask(OTHER, INSTANT, HERE)
FOREIGN = Ask(DEVICE, INSTANT, ELSEWHERE)
TNEW, TCHK = Send(Request.TNEW), Send(Request.TCHK)
TVFY = Send(Request.TVFY, code=CODE)
TRPL = Send(Request.TRPL, asked=CHANGED)
SUBSCRIBE, UNSUBSCRIBE = Do.CREATE_SUBSCRIPTIONS, Do.DELETE_SUBSCRIPTIONS
PROHIBITED = "prohibited"
DELETION = "deletion"

Row = tuple[Phase, tuple[object, ...]]

# What each input does in each phase: the phase after it, and what is to be done.
A, R, W, V, C = Phase
TABLE: dict[str, tuple[Input, tuple[Row, Row, Row, Row, Row]]] = {
    #                         ABSENT, REGISTERING, WAITING, VERIFYING, CHECKING
    "Ask": (
        SAME,
        ((A, (Create(SAME),)), (R, (TNEW,)), (W, (TNEW,)), (V, (TVFY,)), (C, (TCHK,))),
    ),
    "Ask, another device": (
        CHANGED,
        ((A, (Create(CHANGED),)), (R, (TNEW,)), (W, (TRPL,)), (V, (TRPL,)), (C, (TRPL,))),
    ),
    "Ask, another router": (
        FOREIGN,
        (
            (A, (Create(FOREIGN),)),
            (A, (Create(FOREIGN),)),
            (A, (DELETION, Create(FOREIGN))),
            (A, (DELETION, Create(FOREIGN))),
            (A, (DELETION, Create(FOREIGN))),
        ),
    ),
    "Ask, off": (
        Ask(DEVICE, OFF, HERE),
        (
            (A, (PROHIBITED,)),
            (R, (PROHIBITED,)),
            (W, (PROHIBITED,)),
            (V, (PROHIBITED,)),
            (C, (PROHIBITED,)),
        ),
    ),
    "Code": (
        Code(CODE),
        ((A, (PROHIBITED,)), (R, (PROHIBITED,)), (V, (TVFY,)), (V, (TVFY,)), (C, (TVFY,))),
    ),
    "SetMode": (
        SetMode(PERIODIC),
        ((A, (PROHIBITED,)), (R, (TNEW,)), (W, (TCHK,)), (V, (TVFY,)), (C, (TCHK,))),
    ),
    "SetMode, off": (
        SetMode(OFF),
        (
            (A, ()),
            (A, (UNSUBSCRIBE,)),
            (A, (DELETION, UNSUBSCRIBE)),
            (A, (DELETION, UNSUBSCRIBE)),
            (A, (DELETION, UNSUBSCRIBE)),
        ),
    ),
    "RESUME": (
        Simple.RESUME,
        ((A, ()), (R, (TNEW,)), (W, (TCHK,)), (V, (TVFY,)), (C, (TCHK,))),
    ),
    "CHECK_ASKED": (
        Simple.CHECK_ASKED,
        ((A, (PROHIBITED,)), (R, (PROHIBITED,)), (W, (TCHK,)), (V, (TCHK,)), (C, (TCHK,))),
    ),
    "DELETE_ASKED": (
        Simple.DELETE_ASKED,
        (
            (A, (PROHIBITED,)),
            (A, (UNSUBSCRIBE,)),
            (A, (DELETION, UNSUBSCRIBE)),
            (A, (DELETION, UNSUBSCRIBE)),
            (A, (DELETION, UNSUBSCRIBE)),
        ),
    ),
    "VERIFIED": (
        Simple.VERIFIED,
        ((A, ()), (R, ()), (C, (SUBSCRIBE,)), (C, (SUBSCRIBE,)), (C, (SUBSCRIBE,))),
    ),
    "Registered": (
        Registered(ID, SECRET),
        ((A, ()), (W, ()), (W, ()), (V, ()), (C, ())),
    ),
    "Replaced": (
        Replaced(OTHER),
        ((A, ()), (R, ()), (W, ()), (W, ()), (W, ())),
    ),
    "Checked, active": (
        Checked(S.ACTIVE),
        ((A, ()), (R, ()), (C, (SUBSCRIBE,)), (C, (SUBSCRIBE,)), (C, (SUBSCRIBE,))),
    ),
    **{
        f"Checked, {status.value}": (
            Checked(status),
            ((A, ()), (R, ()), (W, ()), (V, ()), (W, ())),
        )
        for status in (S.NEW, S.REGISTERED, S.CONFIRMED)
    },
    **{
        f"Checked, {status.value}": (
            Checked(status),
            ((A, ()), (R, ()), (W, ()), (W, ()), (W, ())),
        )
        for status in S
        if status.is_invalid or status is S.EXPIRED
    },
    "CronSet": (CronSet(20), ((A, ()), (R, ()), (W, ()), (V, ()), (C, ()))),
    "TNEW unknown": (
        Refused(Request.TNEW, unknown=True),
        (
            (A, ()),
            (R, ()),
            (A, (DELETION, Create(SAME))),
            (A, (DELETION, Create(SAME))),
            (A, (DELETION, Create(SAME))),
        ),
    ),
    "TVFY unknown": (
        Refused(Request.TVFY, unknown=True),
        ((A, ()), (R, ()), (W, (TCHK,)), (W, (TCHK,)), (C, (TCHK,))),
    ),
    "TCHK unknown": (
        Refused(Request.TCHK, unknown=True),
        ((A, ()), (R, ()), (A, (Create(SAME),)), (A, (Create(SAME),)), (A, (Create(SAME),))),
    ),
    "TRPL unknown": (
        Refused(Request.TRPL, unknown=True, asked=CHANGED),
        (
            (A, ()),
            (R, ()),
            (A, (Create(CHANGED),)),
            (A, (Create(CHANGED),)),
            (A, (Create(CHANGED),)),
        ),
    ),
    "TCRN unknown": (
        Refused(Request.TCRN, unknown=True),
        ((A, ()), (R, ()), (W, (TCHK,)), (V, (TCHK,)), (C, (TCHK,))),
    ),
    "TVFY refused": (
        Refused(Request.TVFY, unknown=False),
        ((A, ()), (R, ()), (W, (TCHK,)), (W, (TCHK,)), (C, (TCHK,))),
    ),
    "TRPL refused": (
        Refused(Request.TRPL, unknown=False, asked=CHANGED),
        (
            (A, ()),
            (R, ()),
            (A, (DELETION, Create(CHANGED))),
            (A, (DELETION, Create(CHANGED))),
            (A, (DELETION, Create(CHANGED))),
        ),
    ),
    **{
        f"{request.name} refused": (
            Refused(request, unknown=False),
            ((A, ()), (R, ()), (W, ()), (V, ()), (C, ())),
        )
        for request in (Request.TNEW, Request.TCHK, Request.TCRN)
    },
}
PAIRS = [
    pytest.param(where, event, after, effects, id=f"{where.name}-{name}")
    for name, (event, rows) in TABLE.items()
    for where, (after, effects) in zip(Phase, rows, strict=True)
]


def _plain(effect: Effect) -> object:
    match effect:
        case Prohibited():
            return PROHIBITED
        case QueueDeletion():
            return DELETION
        case _:
            return effect


@pytest.mark.parametrize(("where", "event", "after", "effects"), PAIRS)
def test_every_pair(where: Phase, event: Input, after: Phase, effects: tuple[object, ...]) -> None:
    token = TOKENS[where]
    result = step(token, event)
    assert phase(result.token) is after
    assert tuple(map(_plain, result.effects)) == effects
    assert all(item.token == token for item in result.effects if isinstance(item, QueueDeletion))


def test_the_table_has_every_input() -> None:
    events = [event for event, _ in TABLE.values()]
    assert {type(event) for event in events} >= {
        *(Ask, Code, SetMode, Registered, Replaced, Checked, CronSet, Refused)
    }
    assert {event for event in events if isinstance(event, Simple)} == set(Simple)
    assert {event.status for event in events if isinstance(event, Checked)} == set(S)
    refused = {(e.request, e.unknown) for e in events if isinstance(e, Refused)}
    assert refused == set(itertools.product(Request, (True, False)))


@pytest.mark.parametrize(("where", "token"), TOKENS.items())
def test_phases(where: Phase, token: NtfToken | None) -> None:
    assert phase(token) is where


@pytest.mark.parametrize("status", S)
@pytest.mark.parametrize("mode", [INSTANT, PERIODIC])
def test_a_checked_token_has_the_status_of_the_router(status: S, mode: NotificationsMode) -> None:
    result = step(replace(ACTIVE, mode=mode), Checked(status), Cron())
    assert result.token is not None
    assert result.token.status is status
    assert result.token.is_instant == (status is S.ACTIVE and mode is INSTANT)


@pytest.mark.parametrize(
    ("mode", "set_before", "effects"),
    [
        (INSTANT, 0, (SUBSCRIBE,)),
        (INSTANT, 20, (Send(Request.TCRN, minutes=0), SUBSCRIBE)),
        (PERIODIC, 0, (Send(Request.TCRN, minutes=20), UNSUBSCRIBE)),
        (PERIODIC, 20, (UNSUBSCRIBE,)),
    ],
)
def test_the_mode_decides_what_an_active_token_is_for(
    mode: NotificationsMode, set_before: int, effects: tuple[Effect, ...]
) -> None:
    token = replace(VERIFYING, mode=mode, cron_minutes=set_before)
    assert step(token, Simple.VERIFIED).effects == effects


def test_the_mode_is_stored_before_the_router_is_asked() -> None:
    for token in (NEW, WAITING, VERIFYING, ACTIVE):
        changed = step(token, SetMode(PERIODIC)).token
        assert changed is not None
        assert changed.mode is PERIODIC


def test_a_device_token_changes_before_it_is_registered_without_a_replacement() -> None:
    result = step(NEW, CHANGED)
    assert result.token is not None
    assert result.token.device == OTHER


def test_a_replaced_token_keeps_its_id_and_its_secret() -> None:
    token = step(ACTIVE, Replaced(OTHER)).token
    assert token == replace(ACTIVE, device=OTHER, status=S.REGISTERED, action=None)


def test_a_router_that_moved_is_the_same_router() -> None:
    result = step(ACTIVE, Ask(DEVICE, INSTANT, MOVED))
    assert result == Step(replace(ACTIVE, ntf_address=MOVED), (TCHK,))


def test_another_id_means_that_the_router_knows_no_interval() -> None:
    waiting = replace(WAITING, cron_minutes=20)
    same = step(waiting, Registered(ID, SECRET)).token
    other = step(waiting, Registered(b"j" * 24, SECRET)).token
    assert same is not None
    assert other is not None
    assert (same.cron_minutes, other.cron_minutes) == (20, 0)


def test_a_code_is_kept_until_it_was_sent() -> None:
    token = step(WAITING, Code(CODE)).token
    assert token is not None
    assert (token.status, token.action, token.code) == (S.CONFIRMED, TokenAction.VERIFY, CODE)
    verified = step(token, Simple.VERIFIED).token
    assert verified == ACTIVE


def test_secrets_are_not_shown() -> None:
    text = repr(VERIFYING) + repr(Code(CODE)) + repr(Registered(ID, SECRET)) + repr(CHANGED)
    for secret in (repr(CODE), repr(SECRET), repr(ID), "b'aa'", "b'bb'", NEW.auth_keys.private):
        assert str(secret) not in text


_events = st.sampled_from([event for event, _ in TABLE.values()])


@given(st.lists(_events, max_size=12))
def test_no_sequence_leaves_a_token_that_cannot_go_on(events: list[Input]) -> None:
    token: NtfToken | None = NEW
    for event in events:
        token = step(token, event).token
    if token is None:
        return
    assert (token.token_id is None) == (phase(token) is Phase.REGISTERING)
    assert (token.code is not None) == (phase(token) is Phase.VERIFYING)
    assert (token.status is S.ACTIVE) == (phase(token) is Phase.CHECKING)
    [effect] = step(token, Simple.RESUME).effects
    assert isinstance(effect, Send)
