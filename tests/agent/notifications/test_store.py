from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from heliograph.agent.keys import Vault
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.records import (
    NtfSubscription,
    NtfToken,
    SubAction,
    SubscriptionStage,
    TokenAction,
)
from heliograph.agent.notifications.subscription import Intervals, is_due
from heliograph.agent.store import AgentStore
from heliograph.crypto.keys import KeyPair, generate_key_pair
from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    FcmDeviceToken,
    NotificationsMode,
    PushProvider,
    SubscriptionState,
    TokenStatus,
    WPDeviceToken,
)

NOW = 1_000_000.0
SMP = ServerAddress(Scheme.SMP, (decode_host("127.0.0.1"),), "5223", bytes(32))
NTF = ServerAddress(Scheme.NTF, (decode_host("127.0.0.1"),), "443", bytes([2]) * 32)
ELSEWHERE = replace(NTF, port="444")
VAULTS = (Vault(None), Vault(bytes(32)))
ED25519, X25519 = generate_key_pair(Algorithm.ED25519), generate_key_pair(Algorithm.X25519)
SUB = NtfSubscription("c", SMP, NTF)
INTERVALS = Intervals()

_ids = st.none() | st.binary(min_size=1, max_size=24)
_devices = st.sampled_from(
    [
        APNSDeviceToken(PushProvider.APNS_PROD, b"00ff"),
        FcmDeviceToken("abc:def"),
        WPDeviceToken("push.example", "", "/x", bytes(16), b"\x04" + bytes(64)),
    ]
)
_tokens = st.builds(
    NtfToken,
    device=_devices,
    ntf_address=st.sampled_from([NTF, ELSEWHERE]),
    auth_keys=st.just(ED25519),
    dh_keys=st.just(X25519),
    mode=st.sampled_from(NotificationsMode),
    token_id=_ids,
    dh_secret=st.none() | st.binary(min_size=32, max_size=32),
    status=st.sampled_from(TokenStatus),
    action=st.none() | st.sampled_from(TokenAction),
    code=_ids,
    cron_minutes=st.integers(0, 65535),
)
_subs = st.builds(
    NtfSubscription,
    conn_id=st.text("abc", min_size=1, max_size=3),
    smp_address=st.just(SMP),
    ntf_address=st.sampled_from([NTF, ELSEWHERE]),
    notifier_id=_ids,
    token_id=_ids,
    subscription_id=_ids,
    stage=st.sampled_from(SubscriptionStage),
    state=st.none() | st.sampled_from(SubscriptionState),
    action=st.none() | st.sampled_from(SubAction),
    due=st.integers(0, 10**13).map(lambda ms: ms / 1000),
    attempts=st.integers(0, 100),
    revision=st.integers(0, 2**60),
)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)


@pytest.fixture
async def database(place: Path | str) -> AsyncIterator[Database]:
    store = await AgentStore.open(place)
    yield store.database
    await store.close()


@SHARED
@given(token=st.none() | _tokens, vault=st.sampled_from(VAULTS))
async def test_a_token_comes_back_as_it_was(
    database: Database, token: NtfToken | None, vault: Vault
) -> None:
    await database.write(lambda tx: ntf_store.save_token(tx, vault, token))
    assert await database.read(lambda tx: ntf_store.load_token(tx, vault)) == token
    if token is not None:
        last = await database.read(lambda tx: ntf_store.load_last_device(tx, vault))
        assert last == (token.device, token.ntf_address)


@SHARED
@given(subs=st.lists(_subs, unique_by=lambda sub: sub.conn_id))
async def test_subscriptions_come_back_as_they_were(
    database: Database, subs: list[NtfSubscription]
) -> None:
    await database.write(lambda tx: tx.execute("DELETE FROM ntf_subscriptions"))
    await database.write(lambda tx: ntf_store.put_subscriptions(tx, subs))
    stored = await database.read(ntf_store.all_subscriptions)
    assert stored == sorted(subs, key=lambda sub: sub.conn_id)
    found = await database.read(
        lambda tx: ntf_store.find_subscriptions(tx, [sub.conn_id for sub in subs])
    )
    assert found == {sub.conn_id: sub for sub in subs}


@SHARED
@given(
    subs=st.lists(_subs, unique_by=lambda sub: sub.conn_id),
    now=st.integers(0, 10**13).map(lambda ms: ms / 1000),
)
async def test_what_is_due_is_what_the_machine_says(
    database: Database, subs: list[NtfSubscription], now: float
) -> None:
    await database.write(lambda tx: tx.execute("DELETE FROM ntf_subscriptions"))
    await database.write(lambda tx: ntf_store.put_subscriptions(tx, subs))
    actions = [SubAction.NTF_DELETE, SubAction.NTF_CREATE, SubAction.NTF_CHECK]
    due = await database.read(
        lambda tx: ntf_store.subscriptions_due(tx, "ntf", NTF, actions, INTERVALS, now, 100)
    )
    expected = {
        sub.conn_id
        for sub in subs
        if sub.ntf_address == NTF and sub.action in actions and is_due(sub, INTERVALS, now)
    }
    assert {sub.conn_id for sub in due} == expected
    assert len(due) == len(expected)


async def test_a_batch_is_no_longer_than_asked_for(database: Database) -> None:
    subs = [
        replace(SUB, conn_id=f"{action.name} {number}", action=action)
        for action in (SubAction.SMP_KEY, SubAction.SMP_DELETE)
        for number in range(5)
    ]
    await database.write(lambda tx: ntf_store.put_subscriptions(tx, subs))
    actions = [SubAction.SMP_DELETE, SubAction.SMP_KEY]
    due = await database.read(
        lambda tx: ntf_store.subscriptions_due(tx, "smp", SMP, actions, INTERVALS, NOW, 7)
    )
    assert [sub.action for sub in due] == [SubAction.SMP_DELETE] * 5 + [SubAction.SMP_KEY] * 2


async def test_a_worker_changes_only_what_it_has_read(database: Database) -> None:
    changed, removed, void, gone = (replace(SUB, conn_id=conn_id) for conn_id in "abcd")
    superseded = replace(void, revision=1, action=SubAction.SMP_DELETE)
    await database.write(lambda tx: ntf_store.put_subscriptions(tx, [changed, removed, superseded]))
    after = replace(changed, action=SubAction.NTF_CREATE, notifier_id=b"n")
    results = [(changed, after), (removed, None), (void, None), (gone, replace(gone, attempts=1))]
    await database.write(lambda tx: ntf_store.store_results(tx, results))
    assert await database.read(ntf_store.all_subscriptions) == [after, superseded]


async def test_routers_with_work(database: Database) -> None:
    subs = [
        SUB,
        replace(SUB, conn_id="d", action=SubAction.NTF_CHECK, ntf_address=ELSEWHERE),
        replace(SUB, conn_id="e", action=None),
    ]
    await database.write(lambda tx: ntf_store.put_subscriptions(tx, subs))
    smp = await database.read(
        lambda tx: ntf_store.routers_with_work(tx, "smp", [SubAction.SMP_KEY])
    )
    ntf = await database.read(
        lambda tx: ntf_store.routers_with_work(tx, "ntf", [SubAction.NTF_CHECK])
    )
    assert (smp, ntf) == ([SMP], [ELSEWHERE])


@pytest.mark.parametrize("vault", VAULTS)
async def test_tokens_to_delete(database: Database, vault: Vault) -> None:
    token = NtfToken(
        APNSDeviceToken(PushProvider.APNS_TEST, b"aa"),
        NTF,
        KeyPair(*ED25519),
        X25519,
        NotificationsMode.INSTANT,
        b"one",
    )

    def add(tx: Transaction) -> None:
        ntf_store.queue_deletion(tx, vault, token, NOW)
        ntf_store.queue_deletion(tx, vault, token, NOW)  # twice is once
        ntf_store.queue_deletion(tx, vault, replace(token, token_id=b"two"), NOW + 1)

    def due(now: float) -> Awaitable[list[tuple[bytes, bytes, int]]]:
        return database.read(
            lambda tx: [
                (item.token_id, item.key, item.attempts)
                for item in ntf_store.tokens_to_delete(tx, vault, NTF, now, 3600.0, 10)
            ]
        )

    await database.write(add)
    key = ED25519.private
    assert await database.read(ntf_store.routers_to_delete_at) == [NTF]
    assert await due(NOW + 1) == [(b"one", key, 0), (b"two", key, 0)]
    await database.write(lambda tx: ntf_store.delay_deletion(tx, b"one", NOW + 60))
    assert await due(NOW + 1) == [(b"two", key, 0)]
    assert await due(NOW + 60) == [(b"one", key, 1), (b"two", key, 0)]
    assert await due(NOW - 7200) == [(b"one", key, 1), (b"two", key, 0)]
    await database.write(lambda tx: ntf_store.remove_deletions(tx, [b"two"]))
    assert await database.read(lambda tx: ntf_store.next_deletion(tx, NTF)) == NOW + 60
