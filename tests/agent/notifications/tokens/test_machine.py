"""Every phase of the token machine meets every input."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.notifications.records import CronIntervals, NtfToken, TokenAction
from heliograph.agent.notifications.tokens.machine import (
    CommandRefused,
    Create,
    CronConfirmed,
    Effect,
    Input,
    QueueDeletion,
    RaiseProhibited,
    Register,
    Registered,
    Replaced,
    SendCommand,
    SetMode,
    SubscriptionsAction,
    TokenChecked,
    TokenCommand,
    TokenEvent,
    TokenPhase,
    TokenStep,
    VerificationCode,
    phase,
    step,
)
from heliograph.crypto.keys import generate_key_pair
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import APNSDeviceToken, NotificationsMode, PushProvider, TokenStatus

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
    cron_minutes=20,
)
WAITING = replace(NEW, token_id=ID, dh_secret=SECRET, status=S.REGISTERED, action=None)
VERIFYING = replace(WAITING, status=S.CONFIRMED, action=TokenAction.VERIFY, code=CODE)
ACTIVE = replace(WAITING, status=S.ACTIVE, action=TokenAction.CHECK)
TOKENS = {
    TokenPhase.ABSENT: None,
    TokenPhase.REGISTERING: NEW,
    TokenPhase.WAITING: WAITING,
    TokenPhase.VERIFYING: VERIFYING,
    TokenPhase.CHECKING: ACTIVE,
}

SAME = Register(DEVICE, INSTANT, HERE)
CHANGED = Register(OTHER, INSTANT, HERE)
FOREIGN = Register(DEVICE, INSTANT, ELSEWHERE)
TNEW, TCHK = SendCommand(TokenCommand.TNEW), SendCommand(TokenCommand.TCHK)
TVFY = SendCommand(TokenCommand.TVFY, code=CODE)
TRPL = SendCommand(TokenCommand.TRPL, asked=CHANGED)
SUBSCRIBE, UNSUBSCRIBE = (
    SubscriptionsAction.CREATE,
    SubscriptionsAction.DELETE,
)
PROHIBITED = "prohibited"
DELETION = "deletion"

Row = tuple[TokenPhase, tuple[object, ...]]

# What each input does in each phase: the phase after it, and what is to be done.
A, R, W, V, C = TokenPhase
TABLE: dict[str, tuple[Input, tuple[Row, Row, Row, Row, Row]]] = {
    #                         ABSENT, REGISTERING, WAITING, VERIFYING, CHECKING
    "Register": (
        SAME,
        ((A, (Create(SAME),)), (R, (TNEW,)), (W, (TNEW,)), (V, (TVFY,)), (C, (TCHK,))),
    ),
    "Register, another device": (
        CHANGED,
        ((A, (Create(CHANGED),)), (R, (TNEW,)), (W, (TRPL,)), (V, (TRPL,)), (C, (TRPL,))),
    ),
    "Register, another router": (
        FOREIGN,
        (
            (A, (Create(FOREIGN),)),
            (A, (Create(FOREIGN),)),
            (A, (DELETION, Create(FOREIGN))),
            (A, (DELETION, Create(FOREIGN))),
            (A, (DELETION, Create(FOREIGN))),
        ),
    ),
    "Register, off": (
        Register(DEVICE, OFF, HERE),
        (
            (A, (PROHIBITED,)),
            (R, (PROHIBITED,)),
            (W, (PROHIBITED,)),
            (V, (PROHIBITED,)),
            (C, (PROHIBITED,)),
        ),
    ),
    "VerificationCode": (
        VerificationCode(CODE),
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
        TokenEvent.RESUME,
        ((A, ()), (R, (TNEW,)), (W, (TCHK,)), (V, (TVFY,)), (C, (TCHK,))),
    ),
    "CHECK_ASKED": (
        TokenEvent.CHECK_ASKED,
        ((A, (PROHIBITED,)), (R, (PROHIBITED,)), (W, (TCHK,)), (V, (TCHK,)), (C, (TCHK,))),
    ),
    "DELETE_ASKED": (
        TokenEvent.DELETE_ASKED,
        (
            (A, (PROHIBITED,)),
            (A, (UNSUBSCRIBE,)),
            (A, (DELETION, UNSUBSCRIBE)),
            (A, (DELETION, UNSUBSCRIBE)),
            (A, (DELETION, UNSUBSCRIBE)),
        ),
    ),
    "VERIFIED": (
        TokenEvent.VERIFIED,
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
    "TokenChecked, active": (
        TokenChecked(S.ACTIVE),
        ((A, ()), (R, ()), (C, (SUBSCRIBE,)), (C, (SUBSCRIBE,)), (C, (SUBSCRIBE,))),
    ),
    **{
        f"Checked, {status.value}": (
            TokenChecked(status),
            ((A, ()), (R, ()), (W, ()), (V, ()), (W, ())),
        )
        for status in (S.NEW, S.REGISTERED, S.CONFIRMED)
    },
    **{
        f"Checked, {status.value}": (
            TokenChecked(status),
            ((A, ()), (R, ()), (W, ()), (W, ()), (W, ())),
        )
        for status in S
        if status.is_invalid or status is S.EXPIRED
    },
    **{
        f"Checked, {status.value}, to be replaced": (
            TokenChecked(status, may_replace=True),
            (
                (A, ()),
                (R, ()),
                (A, (DELETION, Create(SAME))),
                (A, (DELETION, Create(SAME))),
                (A, (DELETION, Create(SAME))),
            ),
        )
        for status in (S.EXPIRED, S.INVALID)
    },
    "Checked, active, may be replaced": (
        TokenChecked(S.ACTIVE, may_replace=True),
        ((A, ()), (R, ()), (C, (SUBSCRIBE,)), (C, (SUBSCRIBE,)), (C, (SUBSCRIBE,))),
    ),
    "CronConfirmed": (CronConfirmed(20), ((A, ()), (R, ()), (W, ()), (V, ()), (C, ()))),
    "TNEW unknown": (
        CommandRefused(TokenCommand.TNEW, unknown=True),
        (
            (A, ()),
            (R, ()),
            (A, (DELETION, Create(SAME))),
            (A, (DELETION, Create(SAME))),
            (A, (DELETION, Create(SAME))),
        ),
    ),
    "TVFY unknown": (
        CommandRefused(TokenCommand.TVFY, unknown=True),
        ((A, ()), (R, ()), (W, (TCHK,)), (W, (TCHK,)), (C, (TCHK,))),
    ),
    "TCHK unknown": (
        CommandRefused(TokenCommand.TCHK, unknown=True),
        ((A, ()), (R, ()), (A, (Create(SAME),)), (A, (Create(SAME),)), (A, (Create(SAME),))),
    ),
    "TRPL unknown": (
        CommandRefused(TokenCommand.TRPL, unknown=True, asked=CHANGED),
        (
            (A, ()),
            (R, ()),
            (A, (Create(CHANGED),)),
            (A, (Create(CHANGED),)),
            (A, (Create(CHANGED),)),
        ),
    ),
    "TCRN unknown": (
        CommandRefused(TokenCommand.TCRN, unknown=True),
        ((A, ()), (R, ()), (W, (TCHK,)), (V, (TCHK,)), (C, (TCHK,))),
    ),
    "TVFY refused": (
        CommandRefused(TokenCommand.TVFY, unknown=False),
        ((A, ()), (R, ()), (W, (TCHK,)), (W, (TCHK,)), (C, (TCHK,))),
    ),
    "TRPL refused": (
        CommandRefused(TokenCommand.TRPL, unknown=False, asked=CHANGED),
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
            CommandRefused(request, unknown=False),
            ((A, ()), (R, ()), (W, ()), (V, ()), (C, ())),
        )
        for request in (TokenCommand.TNEW, TokenCommand.TCHK, TokenCommand.TCRN)
    },
}
PAIRS = [
    pytest.param(where, event, after, effects, id=f"{where.name}-{name}")
    for name, (event, rows) in TABLE.items()
    for where, (after, effects) in zip(TokenPhase, rows, strict=True)
]


def _plain(effect: Effect) -> object:
    match effect:
        case RaiseProhibited():
            return PROHIBITED
        case QueueDeletion():
            return DELETION
        case _:
            return effect


@pytest.mark.parametrize(("where", "event", "after", "effects"), PAIRS)
def test_every_pair(
    where: TokenPhase, event: Input, after: TokenPhase, effects: tuple[object, ...]
) -> None:
    token = TOKENS[where]
    result = step(token, event)
    assert phase(result.token) is after
    assert tuple(map(_plain, result.effects)) == effects
    assert all(item.token == token for item in result.effects if isinstance(item, QueueDeletion))


def test_the_table_has_every_input() -> None:
    events = [event for event, _ in TABLE.values()]
    assert {type(event) for event in events} >= {
        *(
            Register,
            VerificationCode,
            SetMode,
            Registered,
            Replaced,
            TokenChecked,
            CronConfirmed,
            CommandRefused,
        )
    }
    assert {event for event in events if isinstance(event, TokenEvent)} == set(TokenEvent)
    assert {event.status for event in events if isinstance(event, TokenChecked)} == set(S)
    refused = {(e.request, e.unknown) for e in events if isinstance(e, CommandRefused)}
    assert refused == set(itertools.product(TokenCommand, (True, False)))


@pytest.mark.parametrize(("where", "token"), TOKENS.items())
def test_phases(where: TokenPhase, token: NtfToken | None) -> None:
    assert phase(token) is where


@pytest.mark.parametrize("status", S)
@pytest.mark.parametrize("mode", [INSTANT, PERIODIC])
def test_a_checked_token_has_the_status_of_the_router(status: S, mode: NotificationsMode) -> None:
    result = step(replace(ACTIVE, mode=mode), TokenChecked(status), CronIntervals())
    assert result.token is not None
    assert result.token.status is status
    assert result.token.is_instant == (status is S.ACTIVE and mode is INSTANT)


@pytest.mark.parametrize(
    ("mode", "set_before", "effects"),
    [
        (INSTANT, 20, (SUBSCRIBE,)),
        (INSTANT, 0, (SendCommand(TokenCommand.TCRN, minutes=20), SUBSCRIBE)),
        (PERIODIC, 0, (SendCommand(TokenCommand.TCRN, minutes=20), UNSUBSCRIBE)),
        (PERIODIC, 20, (UNSUBSCRIBE,)),
    ],
)
def test_the_mode_decides_what_an_active_token_is_for(
    mode: NotificationsMode, set_before: int, effects: tuple[Effect, ...]
) -> None:
    token = replace(VERIFYING, mode=mode, cron_minutes=set_before)
    assert step(token, TokenEvent.VERIFIED).effects == effects


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
    result = step(ACTIVE, Register(DEVICE, INSTANT, MOVED))
    assert result == TokenStep(replace(ACTIVE, ntf_address=MOVED), (TCHK,))


def test_another_id_means_that_the_router_knows_no_interval() -> None:
    waiting = replace(WAITING, cron_minutes=20)
    same = step(waiting, Registered(ID, SECRET)).token
    other = step(waiting, Registered(b"j" * 24, SECRET)).token
    assert same is not None
    assert other is not None
    assert (same.cron_minutes, other.cron_minutes) == (20, 0)


def test_a_code_is_kept_until_it_was_sent() -> None:
    token = step(WAITING, VerificationCode(CODE)).token
    assert token is not None
    assert (token.status, token.action, token.code) == (S.CONFIRMED, TokenAction.VERIFY, CODE)
    verified = step(token, TokenEvent.VERIFIED).token
    assert verified == ACTIVE


def test_secrets_are_not_shown() -> None:
    text = (
        repr(VERIFYING)
        + repr(VerificationCode(CODE))
        + repr(Registered(ID, SECRET))
        + repr(CHANGED)
    )
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
    assert (token.token_id is None) == (phase(token) is TokenPhase.REGISTERING)
    assert (token.code is not None) == (phase(token) is TokenPhase.VERIFYING)
    assert (token.status is S.ACTIVE) == (phase(token) is TokenPhase.CHECKING)
    [effect] = step(token, TokenEvent.RESUME).effects
    assert isinstance(effect, SendCommand)
