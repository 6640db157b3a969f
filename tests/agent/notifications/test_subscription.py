"""Every action of a subscription meets every outcome, and every create every subscription."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.notifications.records import (
    NtfSubscription,
    NtfToken,
    SubAction,
    SubscriptionStage,
    TokenAction,
)
from heliograph.agent.notifications.subscription import (
    ActionFailure,
    ActionOutcome,
    Decision,
    Done,
    Intervals,
    KeySet,
    NtfSubscriptionCreated,
    QueueFacts,
    StateIs,
    after,
    allowed,
    at,
    begin,
    decide,
    delete,
    forget,
    is_due,
    is_subscribed,
)
from heliograph.crypto.keys import generate_key_pair
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    NotificationsMode,
    PushProvider,
    SubscriptionState,
    TokenStatus,
)

NOW = 1_000_000.0
DAY = 86_400.0
HOST = (decode_host("127.0.0.1"),)
SMP = ServerAddress(Scheme.SMP, HOST, "5223", bytes(32))
OTHER_SMP = ServerAddress(Scheme.SMP, HOST, "5223", bytes([1]) * 32)
MOVED_SMP = replace(SMP, port="5224")
NTF = ServerAddress(Scheme.NTF, HOST, "443", bytes([2]) * 32)
OTHER_NTF = replace(NTF, fingerprint=bytes([3]) * 32)
MOVED_NTF = replace(NTF, port="444")
NOTIFIER, OTHER_NOTIFIER = b"n" * 24, b"m" * 24
TOKEN_ID, OTHER_TOKEN_ID = b"t" * 24, b"u" * 24
SUB_ID = b"s" * 24
TOKEN = NtfToken(
    APNSDeviceToken(PushProvider.APNS_TEST, b"aa"),
    NTF,
    generate_key_pair(Algorithm.ED25519),
    generate_key_pair(Algorithm.X25519),
    NotificationsMode.INSTANT,
    TOKEN_ID,
    bytes(32),
    TokenStatus.ACTIVE,
    TokenAction.CHECK,
)
INTERVALS = Intervals()
S = SubscriptionState

BARE = QueueFacts(SMP)
KEYED = QueueFacts(SMP, NOTIFIER)
KEY = NtfSubscription("c", SMP, NTF, revision=3)
CREATE = replace(
    KEY, notifier_id=NOTIFIER, stage=SubscriptionStage.KEY, action=SubAction.NTF_CREATE
)
CHECK = replace(
    CREATE,
    token_id=TOKEN_ID,
    subscription_id=SUB_ID,
    stage=SubscriptionStage.CREATED,
    state=S.ACTIVE,
    action=SubAction.NTF_CHECK,
    due=NOW,
)
SMP_DELETE = replace(CHECK, action=SubAction.SMP_DELETE, due=0.0)
NTF_DELETE = replace(
    CHECK,
    notifier_id=None,
    stage=SubscriptionStage.DELETED,
    state=None,
    action=SubAction.NTF_DELETE,
    due=0.0,
)
PARKED = replace(CREATE, action=None)
SUBS = {
    SubAction.SMP_KEY: KEY,
    SubAction.SMP_DELETE: SMP_DELETE,
    SubAction.NTF_CREATE: CREATE,
    SubAction.NTF_CHECK: CHECK,
    SubAction.NTF_DELETE: NTF_DELETE,
    None: PARKED,
}
OUTCOMES: tuple[ActionOutcome, ...] = (
    KeySet(NOTIFIER),
    NtfSubscriptionCreated(SUB_ID),
    *(StateIs(state) for state in S),
    *Done,
    *ActionFailure,
)
REMOVED = None


def _parked(sub: NtfSubscription) -> NtfSubscription:
    return replace(sub, action=None)


def _later(sub: NtfSubscription) -> NtfSubscription:
    return replace(sub, attempts=1, due=NOW + 60)


def _expected(action: SubAction | None, outcome: ActionOutcome) -> NtfSubscription | None:
    """Written from the outcome's side, as the machine is from the action's."""
    sub = SUBS[action]
    if action is None or outcome is ActionFailure.UNREACHABLE:
        return sub
    if outcome is ActionFailure.LATER:
        return _later(sub)
    table: dict[tuple[SubAction, ActionOutcome], NtfSubscription | None] = {
        (SubAction.SMP_KEY, KeySet(NOTIFIER)): CREATE,
        (SubAction.NTF_CREATE, NtfSubscriptionCreated(SUB_ID)): replace(
            CHECK, state=S.NEW, due=NOW + DAY
        ),
        (SubAction.NTF_CHECK, ActionFailure.AUTH): KEY,
        **{(SubAction.SMP_DELETE, any_other): NTF_DELETE for any_other in OUTCOMES},
        **{(SubAction.NTF_DELETE, any_other): REMOVED for any_other in OUTCOMES},
        **{
            (SubAction.NTF_CHECK, StateIs(state)): replace(CHECK, state=state, due=NOW + 3 * DAY)
            for state in (S.NEW, S.PENDING, S.ACTIVE, S.INACTIVE)
        },
        **{
            (SubAction.NTF_CHECK, StateIs(state)): KEY
            for state in (S.END, S.AUTH, S.DELETED, S.SERVICE, S.ERR)
        },
    }
    return table.get((action, outcome), _parked(sub))


@pytest.mark.parametrize("action", SUBS)
@pytest.mark.parametrize("outcome", OUTCOMES, ids=str)
def test_every_pair(action: SubAction | None, outcome: ActionOutcome) -> None:
    assert after(SUBS[action], outcome, TOKEN, INTERVALS, NOW) == _expected(action, outcome)


def test_every_action_is_tried() -> None:
    assert set(SUBS) == {*SubAction, None}


@pytest.mark.parametrize("token", [None, replace(TOKEN, token_id=OTHER_TOKEN_ID)])
def test_what_another_token_made_cannot_be_deleted_at_the_router(token: NtfToken | None) -> None:
    assert after(SMP_DELETE, Done.DELETED, token, INTERVALS, NOW) is None
    assert forget(CHECK, token) is None


def test_a_subscription_that_never_came_so_far_needs_no_deletion_there() -> None:
    sub = replace(CREATE, action=SubAction.SMP_DELETE)
    assert after(sub, Done.DELETED, TOKEN, INTERVALS, NOW) is None
    assert forget(CREATE, TOKEN) is None


def test_what_cannot_be_done_now_is_tried_ever_later() -> None:
    sub: NtfSubscription | None = CREATE
    waits = []
    for _ in range(12):
        assert sub is not None
        sub = after(sub, ActionFailure.LATER, TOKEN, INTERVALS, NOW)
        assert sub is not None
        waits.append(sub.due - NOW)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (60.0, 6 * 3600.0)


def test_success_forgets_failures() -> None:
    sub = after(replace(KEY, attempts=5, due=NOW), KeySet(NOTIFIER), TOKEN, INTERVALS, NOW)
    assert sub == CREATE


# A create, for every kind of subscription there may be.


@pytest.mark.parametrize(
    ("queue", "sub", "decision"),
    [
        (BARE, None, Decision.NEW),
        (KEYED, None, Decision.NEW),
        (BARE, KEY, Decision.CONTINUE_SMP),
        (KEYED, CREATE, Decision.CONTINUE_NTF),
        (KEYED, CHECK, Decision.CONTINUE_NTF),
        (KEYED, PARKED, Decision.RESET),
        (BARE, _parked(KEY), Decision.RESET),
        (KEYED, SMP_DELETE, Decision.RESET),
        (BARE, NTF_DELETE, Decision.RESET),
        # The queue has other credentials, or none.
        (BARE, CREATE, Decision.RESET),
        (BARE, CHECK, Decision.RESET),
        (KEYED, KEY, Decision.RESET),
        (QueueFacts(SMP, OTHER_NOTIFIER), CHECK, Decision.RESET),
        # The queue is at another router, or its router at another place.
        (QueueFacts(OTHER_SMP), KEY, Decision.RESET),
        (QueueFacts(MOVED_SMP), KEY, Decision.RESET),
        (QueueFacts(OTHER_SMP, NOTIFIER), CHECK, Decision.RESET),
        (QueueFacts(MOVED_SMP, NOTIFIER), CHECK, Decision.RESET),
        # The token is another, here or elsewhere.
        (KEYED, replace(CHECK, token_id=OTHER_TOKEN_ID), Decision.RESET),
        (KEYED, replace(CHECK, ntf_address=OTHER_NTF), Decision.RESET),
        (BARE, replace(KEY, ntf_address=OTHER_NTF), Decision.RESET),
        # The notification router is reached elsewhere, and has all it had.
        (KEYED, replace(CHECK, ntf_address=MOVED_NTF), Decision.CONTINUE_NTF),
    ],
)
def test_the_partition_of_a_create(
    queue: QueueFacts, sub: NtfSubscription | None, decision: Decision
) -> None:
    assert decide(queue, sub, TOKEN) is decision


@pytest.mark.parametrize("sub", SUBS.values())
@pytest.mark.parametrize("queue", [BARE, KEYED, QueueFacts(MOVED_SMP, NOTIFIER)])
def test_every_reset_can_go_on(queue: QueueFacts, sub: NtfSubscription) -> None:
    if decide(queue, sub, TOKEN) is Decision.RESET:
        begun = begin("c", queue, sub, TOKEN)
        assert begun == NtfSubscription("c", queue.smp_address, NTF, revision=4)
        assert decide(QueueFacts(queue.smp_address), begun, TOKEN) is Decision.CONTINUE_SMP


def test_a_new_subscription_begins_where_its_queue_is() -> None:
    assert begin("c", BARE, None, TOKEN) == replace(KEY, revision=0)
    assert begin("c", KEYED, None, TOKEN) == replace(CREATE, revision=0)


def test_a_notification_router_that_moved_is_asked_where_it_is() -> None:
    assert at(CHECK, TOKEN) is CHECK
    assert at(replace(CHECK, ntf_address=MOVED_NTF), TOKEN) == replace(CHECK, revision=4)


@pytest.mark.parametrize("sub", SUBS.values())
def test_every_subscription_can_be_deleted(sub: NtfSubscription) -> None:
    deleted = delete(sub, KEYED)
    assert (deleted.action, deleted.revision) == (SubAction.SMP_DELETE, sub.revision + 1)
    assert delete(sub, QueueFacts(OTHER_SMP)).smp_address == OTHER_SMP
    assert delete(sub, None).smp_address == SMP


@pytest.mark.parametrize("sub", SUBS.values())
def test_every_subscription_can_be_forgotten(sub: NtfSubscription) -> None:
    forgotten = forget(sub, TOKEN)
    if sub.subscription_id is None:
        assert forgotten is None
    else:
        assert forgotten is not None
        assert forgotten.action is SubAction.NTF_DELETE
        assert forgotten.revision == sub.revision + 1


@pytest.mark.parametrize("status", TokenStatus)
@pytest.mark.parametrize("mode", NotificationsMode)
def test_only_deletions_need_no_active_token(status: TokenStatus, mode: NotificationsMode) -> None:
    instant = status is TokenStatus.ACTIVE and mode is NotificationsMode.INSTANT
    everything, deletions = list(SubAction), [SubAction.SMP_DELETE, SubAction.NTF_DELETE]
    token = replace(TOKEN, status=status, mode=mode)
    assert allowed(everything, token) == (everything if instant else deletions)
    assert allowed(everything, None) == deletions


@pytest.mark.parametrize("state", S)
def test_which_states_are_kept(state: S) -> None:
    assert is_subscribed(state) == (state in (S.NEW, S.PENDING, S.ACTIVE, S.INACTIVE))


# Clocks.


@pytest.mark.parametrize("action", SubAction)
def test_what_is_due_at_once_is_due_whatever_the_clock_says(action: SubAction) -> None:
    sub = replace(CHECK, action=action, due=0.0)
    for now in (0.0, NOW, 1e12):
        assert is_due(sub, INTERVALS, now)


def test_a_check_is_due_in_time_and_not_before() -> None:
    sub = replace(CHECK, due=NOW + 3 * DAY)
    assert not is_due(sub, INTERVALS, NOW)
    assert not is_due(sub, INTERVALS, NOW + 3 * DAY - 1)
    assert is_due(sub, INTERVALS, NOW + 3 * DAY)
    assert is_due(sub, INTERVALS, NOW + 1000 * DAY)


def test_a_clock_that_was_set_back_delays_nothing_for_ever() -> None:
    assert is_due(replace(CHECK, due=NOW + 3 * DAY), INTERVALS, NOW - DAY)
    later = replace(CREATE, attempts=9, due=NOW + 6 * 3600)
    assert not is_due(later, INTERVALS, NOW)
    assert is_due(later, INTERVALS, NOW - 1)


def test_what_is_parked_is_never_due() -> None:
    assert not is_due(PARKED, INTERVALS, 1e12)


@given(
    st.sampled_from(list(SUBS.values())),
    st.lists(st.sampled_from(OUTCOMES), max_size=10),
    st.floats(0, 1e10),
)
def test_any_sequence_ends_where_a_create_goes_on(
    sub: NtfSubscription, outcomes: list[ActionOutcome], now: float
) -> None:
    current: NtfSubscription | None = sub
    for outcome in outcomes:
        if current is not None:
            current = after(current, outcome, TOKEN, INTERVALS, now)
    if current is None:
        return
    assert (current.stage is SubscriptionStage.CREATED) <= (current.subscription_id is not None)
    assert current.revision == sub.revision
    queue = QueueFacts(current.smp_address, current.notifier_id)
    parked = current.action is None or current.action.is_delete
    assert (decide(queue, current, TOKEN) is Decision.RESET) == parked


def test_ids_are_not_shown() -> None:
    text = repr(CHECK) + repr(KEYED) + repr(KeySet(NOTIFIER)) + repr(NtfSubscriptionCreated(SUB_ID))
    for secret in (NOTIFIER, TOKEN_ID, SUB_ID):
        assert repr(secret) not in text
