"""What counts as left to do, of all that a store may have."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.agent import pending
from heliograph.agent.connections import queues
from heliograph.agent.connections.queues import NewRcvQueue
from heliograph.agent.keys import Vault
from heliograph.agent.messages import store as messages
from heliograph.agent.messages.envelope import Body
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.context import NotificationSettings
from heliograph.agent.notifications.records import (
    NtfSubscription,
    NtfToken,
    SubAction,
    SubscriptionStage,
    TokenAction,
)
from heliograph.agent.store import AgentStore
from heliograph.crypto.keys import generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import APNSDeviceToken, NotificationsMode, PushProvider, TokenStatus

NOW = 1_000_000.0
LATER = NOW + 60
SMP = ServerAddress(Scheme.SMP, (decode_host("127.0.0.1"),), "5223", bytes(32))
NTF = ServerAddress(Scheme.NTF, (decode_host("127.0.0.1"),), "443", bytes([2]) * 32)
INSTANT, PERIODIC, _ = NotificationsMode
ACTIVE = NtfToken(
    APNSDeviceToken(PushProvider.APNS_TEST, b"00ff"),
    NTF,
    generate_key_pair(Algorithm.ED25519),
    generate_key_pair(Algorithm.X25519),
    INSTANT,
    b"token",
    bytes(32),
    TokenStatus.ACTIVE,
    TokenAction.CHECK,
    cron_minutes=20,
    checked_at=NOW,
)
WAITING = replace(ACTIVE, status=TokenStatus.REGISTERED, action=None)
CHECKED = NtfSubscription(
    "c", SMP, NTF, stage=SubscriptionStage.CREATED, action=SubAction.NTF_CHECK, due=LATER
)
CREATING = replace(CHECKED, stage=SubscriptionStage.KEY, action=SubAction.NTF_CREATE, due=0.0)
PARKED = replace(CHECKED, action=None)
DELETING = replace(CHECKED, action=SubAction.NTF_DELETE, due=0.0)

Fill = Callable[[Transaction, Vault], object]


@pytest.fixture
async def store(place: Path | str) -> AsyncIterator[AgentStore]:
    store = await AgentStore.open(place)
    yield store
    await store.close()


async def is_left(store: AgentStore, *fill: Fill) -> bool:
    def write(tx: Transaction) -> None:
        for each in fill:
            each(tx, store.vault)

    await store.write(write)
    return await pending.has_work(store, NotificationSettings(), NOW)


def connection(tx: Transaction, vault: Vault) -> None:
    key = generate_key_pair(Algorithm.X25519).private
    queues.add_connection(tx, "c", 0)
    queues.add_rcv_queue(tx, vault, "c", NewRcvQueue(SMP, b"r", b"s", key, bytes(32), key, True))


def muted(tx: Transaction, vault: Vault) -> None:
    queues.set_enable_ntfs(tx, "c", False)


def token(value: NtfToken) -> Fill:
    return lambda tx, vault: ntf_store.save_token(tx, vault, value)


def subscription(value: NtfSubscription) -> Fill:
    return lambda tx, vault: ntf_store.put_subscriptions(tx, [value])


async def test_nothing_is_left_of_nothing(store: AgentStore) -> None:
    assert not await is_left(store)


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (ACTIVE, False),
        (WAITING, False),
        (replace(ACTIVE, status=TokenStatus.NEW, action=TokenAction.REGISTER), True),
        (replace(ACTIVE, status=TokenStatus.CONFIRMED, action=TokenAction.VERIFY), True),
        (replace(ACTIVE, mode=PERIODIC), False),
        (replace(ACTIVE, mode=PERIODIC, cron_minutes=60), True),
        (replace(ACTIVE, cron_minutes=0), True),
        (replace(ACTIVE, checked_at=NOW - 86_400), True),
        (replace(ACTIVE, checked_at=NOW + 86_400), True),
        (replace(WAITING, mode=PERIODIC), False),
    ],
)
async def test_tokens(store: AgentStore, value: NtfToken, left: bool) -> None:
    assert await is_left(store, token(value)) is left


async def test_tokens_to_delete(store: AgentStore) -> None:
    assert await is_left(store, lambda tx, vault: ntf_store.queue_deletion(tx, vault, ACTIVE, NOW))
    assert not await is_left(store, lambda tx, _: ntf_store.delay_deletion(tx, b"token", LATER))


@pytest.mark.parametrize(
    ("value", "with_active", "with_waiting", "with_none"),
    [
        (CHECKED, False, False, True),
        (replace(CHECKED, due=0.0), True, False, True),
        (CREATING, True, False, True),
        (PARKED, False, False, True),
        (DELETING, True, True, True),
        (replace(DELETING, due=LATER), False, False, False),
    ],
)
async def test_subscriptions(
    store: AgentStore,
    value: NtfSubscription,
    with_active: bool,
    with_waiting: bool,
    with_none: bool,
) -> None:
    """Those that nobody wants any more are to be deleted; those that wait for a token wait."""
    assert await is_left(store, connection, subscription(value)) is with_none
    assert await is_left(store, token(WAITING)) is with_waiting
    assert await is_left(store, token(ACTIVE)) is with_active


async def test_a_connection_without_a_subscription(store: AgentStore) -> None:
    assert not await is_left(store, connection, token(WAITING))
    assert await is_left(store, token(ACTIVE))
    assert not await is_left(store, muted)


async def test_a_message_that_waits_for_the_other_side(store: AgentStore) -> None:
    def send(tx: Transaction, vault: Vault) -> int:
        return messages.add_outgoing(tx, vault, "c", Body(b"hello"), 0)

    assert not await is_left(store, connection, send)
