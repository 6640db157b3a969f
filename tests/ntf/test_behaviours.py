"""The numbered behaviours of the reference's router, one test each, in its numbers.

Those that we improve on are tested as improved, and say so.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.keys import generate_key_pair
from heliograph.db.database import Database
from heliograph.db.errors import DatabaseError
from heliograph.ntf.observing.stats import Counters
from heliograph.ntf.router import NtfRouter
from heliograph.ntf.store.records import QueueKey
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.subscriptions import servers, subscriptions
from heliograph.ntf.store.subscriptions.server_store import DatabaseServerStore
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.subscriber.settings import SubscriberSettings
from heliograph.push.null import NullProvider
from heliograph.push.provider import Accepted, Delivery
from heliograph.runtime.reference.statslog import first_delay
from heliograph.sim.providers.http2 import Act
from heliograph.sim.providers.script import ScriptRule
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.server import Limits
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import SMPQueueNtf
from heliograph.wire.errors import ErrorCode
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import CheckMessagesPush, MessagePush, VerificationPush
from heliograph.wire.ntf.tokens import PushProvider, SubscriptionState, TokenStatus
from tests.ntf.support import AUTH, OK, QUOTA, SETTINGS, NtfWorld, a_device, ask_many
from tests.smp.support import create, keys
from tests.waiting import eventually, until

ACTIVE = SubscriptionState.ACTIVE
WITH_SERVICE = replace(SETTINGS, subscriber=replace(SETTINGS.subscriber, use_service=True))


async def test_behaviour_02_tnew_is_idempotent(small_world: NtfWorld) -> None:
    phone = await small_world.phone()
    first = await phone.tnew()
    code = await phone.code()
    assert await phone.tnew() == first
    assert await phone.code() == code
    # Another DH key: not the client that registered it.
    right, phone.dh_keys = phone.dh_keys, generate_key_pair(Algorithm.X25519)
    assert await phone.tnew() == AUTH
    phone.dh_keys = right
    # Another key: another token.
    other = await small_world.phone(phone.device)
    assert (await other.tnew()).token_id != first.token_id


async def test_behaviour_03_snew_is_idempotent(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription = await phone.subscribe(queue)
    assert await phone.snew(queue) == ntf.IDSUB(subscription)
    assert queue.notifier is not None
    queue.notifier.auth = keys()
    assert await phone.snew(queue) == AUTH
    assert small_world.router.stats.counters.sub_created == 1


async def test_behaviour_04_null_tokens_are_not_counted(small_world: NtfWorld) -> None:
    small_world.providers[PushProvider.APNS_NULL] = null = RecordingNull()
    await small_world.restart_ntf()
    phone = await small_world.phone(a_device(PushProvider.APNS_NULL))
    await phone.tnew()
    await until(lambda: null.pushes)
    push = null.pushes[0]
    assert isinstance(push, VerificationPush)
    assert await phone.tvfy(open_box_padded(phone.secret, push.nonce, push.box)) == OK
    assert await phone.trpl(a_device(PushProvider.APNS_NULL)) == OK
    assert await phone.ask(ntf.TDEL(), phone.token_id) == OK
    assert small_world.router.stats.counters == Counters()
    assert small_world.router.stats.failures == {}


class RecordingNull(NullProvider):
    def __init__(self) -> None:
        self.pushes: list[object] = []

    async def send(self, delivery: Delivery) -> Accepted:
        self.pushes.append(delivery.push)
        return await super().send(delivery)


async def test_behaviour_05_end_counts_only_in_the_active_session(small_world: NtfWorld) -> None:
    """Of a session that is over, nothing is heard: it is closed before another begins."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription = await phone.subscribe(queue)
    [subscriber] = small_world.router.subscribers.values()
    assert subscriber.client is not None
    old = subscriber.client
    await small_world.restart_smp()
    await phone.until_state(subscription, ACTIVE)
    assert subscriber.client is not old
    assert not old.is_connected
    assert (await phone.schk(subscription)).state is ACTIVE
    # In the active one it ends the subscription.
    other = await small_world.smp.connect()
    assert await queue.nsub(other) == smp.SOK()
    await phone.until_state(subscription, SubscriptionState.END)


async def test_behaviour_06_nobody_waits_for_a_subscriber(small_world: NtfWorld) -> None:
    """Better: an SNEW is answered once it is stored, whether its router can be reached or not."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    await small_world.smp.stop()
    answers = await asyncio.gather(*(phone.snew(queue) for _ in range(5)))
    assert len({answer.subscription_id for answer in answers}) == 1
    assert len(small_world.router.subscribers) == 1
    await small_world.smp.start()
    await phone.until_state(answers[0].subscription_id, ACTIVE)


async def test_behaviour_07_an_unavailable_service_falls_back_to_queues(
    small_world: NtfWorld,
) -> None:
    small_world.settings = WITH_SERVICE
    await small_world.restart_ntf()
    phone = await small_world.registered()
    queues = await small_world.queues(3)
    for queue in queues:
        await phone.subscribe(queue)
    await small_world.stop_ntf()
    # The messaging router no longer takes our certificate.
    role = ServiceRole.MESSAGING.value.decode()
    await small_world.smp.router.store.database.write(
        lambda tx: tx.execute("UPDATE services SET role = ?", (role,))
    )
    await small_world.restart_smp()
    await small_world.start_ntf()
    phone.client = await small_world.connect()
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    await small_world.send(*queues)
    await phone.notified_of(*queues)
    assert small_world.router.stats.counters.drift_repaired == 1
    [[associated]] = await small_world.read(
        lambda tx: tx.query("SELECT COUNT(*) FROM subscriptions WHERE associated = 1")
    )
    assert associated == 0


async def test_behaviour_08_a_push_is_retried_at_once_and_then_until_it_is_delivered(
    small_world: NtfWorld,
) -> None:
    """Better: the second failure is not the end, and 429 is honoured."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    small_world.apns.play(
        ScriptRule(at=1, act=Act.RESET),
        ScriptRule(at=2, act=Act.RESET),
        ScriptRule(at=3, status=503),
        ScriptRule(at=4, status=429, retry_after=1),
    )
    began = time.monotonic()
    await small_world.send(queue)
    await phone.notified_of(queue)
    assert time.monotonic() - began >= 1
    assert small_world.apns.attempts(phone.device) == 1 + 5  # the first was the verification
    await small_world.until_none_pending()
    counters = small_world.router.stats.counters
    assert (counters.ntf_delivered, counters.ntf_retried) == (1, 3)


async def test_behaviour_09_wake_ups_are_20_minutes_apart_or_more(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    for minutes in (1, 19):
        assert await phone.ask(ntf.TCRN(minutes), phone.token_id) == QUOTA
    for minutes in (0, 20, 65535):
        assert await phone.ask(ntf.TCRN(minutes), phone.token_id) == OK


async def test_behaviour_10_all_routers_are_subscribed_to_at_once(small_world: NtfWorld) -> None:
    """A router that does not answer keeps nobody waiting."""
    phone = await small_world.registered()
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    others = [await small_world.another_smp() for _ in range(3)]
    queues = []
    for router in (*others, small_world.smp):
        queue = await create(await router.connect(), subscribe=False, with_notifier=True)
        queues.append(queue)
        await phone.subscribe(queue, router=router)
    address = replace(small_world.smp.address, port=str(port))
    lost = await create(small_world.sender, subscribe=False, with_notifier=True)
    assert lost.notifier is not None
    named = SMPQueueNtf(address, lost.notifier_id)
    command = ntf.SNEW(phone.token_id, named, lost.notifier.auth.private)
    assert isinstance(await phone.ask(command), ntf.IDSUB)
    await small_world.restart_ntf(phone)
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    silent.close()


async def test_behaviour_11_malformed_commands_are_answered_without_spoiling_others(
    small_world: NtfWorld,
) -> None:
    phone = await small_world.registered()
    key, token_id = phone.keys.private, phone.token_id
    answers = await ask_many(
        phone.client,
        [
            ClientRequest(ntf.TCHK(), token_id, key),
            ClientRequest(ntf.TCHK(), b"", key),  # no entity
            ClientRequest(ntf.TCHK(), token_id, None),  # no authorization
            ClientRequest(ntf.PING(), token_id, key),  # both, and needs neither
            ClientRequest(ntf.TCRN(20), token_id, key),
            ClientRequest(ntf.TCHK(), os.urandom(24), key),
            ClientRequest(ntf.PING(), b"", None),
        ],
    )
    assert answers == [
        ntf.TKN(TokenStatus.ACTIVE),
        ntf.ERR(ErrorCode.CMD_NO_AUTH),
        ntf.ERR(ErrorCode.CMD_NO_AUTH),
        ntf.ERR(ErrorCode.CMD_HAS_AUTH),
        OK,
        AUTH,
        ntf.PONG(),
    ]


async def test_behaviour_12_a_stop_keeps_everything(small_world: NtfWorld) -> None:
    """What maintenance does to a store is tested with the command that does it."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    small_world.apns.play(ScriptRule(status=503))
    await small_world.send(queue)
    await until(lambda: small_world.router.stats.counters.ntf_failed)
    await small_world.stop_ntf()
    small_world.apns.play()
    await small_world.start_ntf()
    await phone.notified_of(queue)


async def test_behaviour_13_resubscription_does_not_delay_or_end_the_router(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Better: what goes wrong with it is logged and tried again, not lost."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription = await phone.subscribe(queue)
    page, failures = subscriptions.page, [RuntimeError("a bug")] * 4

    def failing(*arguments: Any, **options: Any) -> list[QueueKey]:
        if failures:
            raise failures.pop()
        return page(*arguments, **options)

    monkeypatch.setattr(subscriptions, "page", failing)
    await small_world.restart_ntf(phone)
    assert await phone.tchk() is TokenStatus.ACTIVE
    await phone.until_state(subscription, ACTIVE)
    assert not failures
    assert "a subscriber failed, restarting it" in caplog.text


@pytest.mark.parametrize("status", ["INVALID,BAD", "INVALID", "EXPIRED", "NEW"])
async def test_behaviour_14_tnew_repairs_a_token_that_cannot_be_verified(
    small_world: NtfWorld, status: str
) -> None:
    phone = await small_world.registered()
    await small_world.router.store.database.write(
        lambda tx: tx.execute("UPDATE tokens SET status = ?", (status,))
    )
    await small_world.restart_ntf(phone)
    assert (await phone.tchk()).value == status
    assert isinstance(await phone.tnew(), ntf.IDTKN)
    assert await phone.tvfy(await phone.code()) == OK
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_behaviour_15_a_deleted_queue_is_deleted_in_any_session(
    small_world: NtfWorld,
) -> None:
    """Reported while subscribed, or found when subscribing again."""
    phone = await small_world.registered()
    first, second = await small_world.queues(2)
    reported = await phone.subscribe(first)
    found = await phone.subscribe(second)
    assert await first.delete(small_world.sender) == smp.OK()
    await phone.until_state(reported, SubscriptionState.DELETED)
    await small_world.stop_ntf()
    assert await second.delete(small_world.sender) == smp.OK()
    await small_world.start_ntf()
    phone.client = await small_world.connect()
    await phone.until_state(found, SubscriptionState.AUTH)
    assert (await phone.schk(reported)).state is SubscriptionState.DELETED


async def test_behaviour_16_trpl_has_a_new_code_and_the_same_secret(small_world: NtfWorld) -> None:
    phone = await small_world.phone()
    await phone.tnew()
    code = await phone.code()
    assert await phone.tvfy(code) == OK
    before = await _token(small_world, phone.token_id)
    assert await phone.trpl(a_device()) == OK
    assert await phone.tvfy(code) == AUTH
    new_code = await phone.code()  # opened with the secret of before
    assert new_code != code
    assert await phone.tvfy(new_code) == OK
    after = await _token(small_world, phone.token_id)
    assert after[:3] == before[:3]


async def _token(world: NtfWorld, token_id: bytes) -> tuple[object, ...]:
    [row] = await world.read(
        lambda tx: tx.query(
            "SELECT token_id, dh_private, dh_secret, code FROM tokens WHERE token_id = ?",
            (token_id,),
        )
    )
    return tuple(row)


async def test_behaviour_17_only_messages_need_an_active_token(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    assert await phone.ask(ntf.TCRN(20), phone.token_id) == OK
    await small_world.make_wake_ups_due()
    assert await small_world.apns.push(phone.device) == CheckMessagesPush()
    await small_world.until_none_pending()
    await phone.trpl(a_device())
    await small_world.send(queue)
    push = await small_world.apns.push(phone.device)
    assert isinstance(push, VerificationPush)
    assert await phone.is_quiet()  # no message
    small_world.router.outbox.wake()
    assert await phone.is_quiet()
    code = open_box_padded(phone.secret, push.nonce, push.box)
    assert await phone.tvfy(code) == OK
    assert isinstance(await small_world.apns.push(phone.device), MessagePush)


async def test_behaviour_18_drift_is_repaired(small_world: NtfWorld) -> None:
    """Better: not only logged. Count and hash are compared, and all is associated anew."""
    small_world.settings = WITH_SERVICE
    await small_world.restart_ntf()
    phone = await small_world.registered()
    queues = await small_world.queues(4)
    for queue in queues:
        await phone.subscribe(queue)
    await small_world.stop_ntf()
    # While we are away, one queue leaves our service, and another is there that we never had.
    other = await small_world.smp.connect()
    assert await queues[0].nsub(other) == smp.SOK()
    await other.close()
    [service] = small_world.smp.router.services.values()
    service.toggle(os.urandom(24), 1)
    assert service.count == 4
    await small_world.start_ntf()
    phone.client = await small_world.connect()
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    await small_world.send(*queues)
    await phone.notified_of(*queues)
    assert small_world.router.stats.counters.drift_repaired == 1
    assert [event.kind for event in small_world.events].count("smp_drift") == 1
    [server] = await small_world.router.store.servers.servers()

    async def both_agree() -> bool:
        ids = await small_world.router.store.servers.associated(server.server_id)
        return ids.digest() == (service.count, service.ids_hash)

    await eventually(both_agree)  # the repair ends after the last notification
    # Once: afterwards both agree.
    small_world.apns.skip(phone.device)
    before = small_world.smp.router.observer.counters.notifier_subscribed
    await small_world.restart_ntf(phone)
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    assert small_world.router.stats.counters.drift_repaired == 0
    assert small_world.smp.router.observer.counters.notifier_subscribed == before


async def test_behaviour_19_pages_are_larger_than_batches(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SubscriberSettings().page == 10 * SubscriberSettings().batch
    phone = await small_world.registered()
    queues = await small_world.queues(11)
    for queue in queues:
        await phone.subscribe(queue)
    small_world.settings = replace(
        SETTINGS, subscriber=replace(SETTINGS.subscriber, batch=8, page=4)
    )
    pages, parts = [], []
    page, request_many = DatabaseServerStore.page, Client.request_many

    async def counting_page(self: DatabaseServerStore, *arguments: Any) -> list[QueueKey]:
        found = await page(self, *arguments)
        pages.append(len(found))
        return found

    async def counting_part(self: Client, requests: Iterable[ClientRequest[Any]]) -> list[Any]:
        part = list(requests)
        if isinstance(part[0].command, smp.NSUB):
            parts.append(len(part))
        return await request_many(self, part)

    monkeypatch.setattr(DatabaseServerStore, "page", counting_page)
    monkeypatch.setattr(Client, "request_many", counting_part)
    await small_world.restart_ntf(phone)
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    assert pages[:3] == [4, 4, 3]
    assert sorted(parts) == [1, 2, 2, 2, 2, 2]  # a batch is in flight in four parts


async def test_behaviour_20_a_database_error_at_the_start_is_not_the_end(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better: tried again until the database is there."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription = await phone.subscribe(queue)
    in_use, failures = servers.in_use, [DatabaseError("lost")] * 2

    def failing(*arguments: Any) -> list[ServerRecord]:
        if failures:
            raise failures.pop()
        return in_use(*arguments)

    monkeypatch.setattr(servers, "in_use", failing)
    await small_world.restart_ntf(phone)
    assert await phone.tchk() is TokenStatus.ACTIVE
    await phone.until_state(subscription, ACTIVE)
    assert not failures


def test_behaviour_21_statistics_are_aligned_to_the_wall_clock() -> None:
    """In detail: test_statslog.py."""
    midnight, noon, day = 1_700_006_400.0, 12 * 3600.0, 86_400.0
    assert midnight % day == 0
    assert first_delay(midnight, noon) == noon
    assert first_delay(midnight + noon + 1, noon) == day - 1


async def test_behaviour_22_a_notification_for_nobody_is_only_counted(
    small_world: NtfWorld, caplog: pytest.LogCaptureFixture
) -> None:
    phone = await small_world.registered()
    first, second = await small_world.queues(2)
    deleted = await phone.subscribe(first)
    await phone.subscribe(second)
    assert await phone.ask(ntf.SDEL(), deleted) == OK
    caplog.clear()
    await small_world.send(first, second)
    await phone.notified_of(second)
    counters = small_world.router.stats.counters
    assert (counters.ntf_received, counters.ntf_received_auth) == (1, 1)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_behaviour_23_a_delivered_verification_confirms_but_never_takes_back(
    small_world: NtfWorld,
) -> None:
    phone = await small_world.phone()
    small_world.apns.play(ScriptRule(times=1, status=503))
    await phone.tnew()
    assert await phone.tchk() is TokenStatus.REGISTERED
    code = await phone.code()
    await phone.until_status(TokenStatus.CONFIRMED)
    assert await phone.tvfy(code) == OK
    await phone.tnew()
    await phone.code()
    await small_world.until_none_pending()
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_behaviour_24_idle_clients_are_disconnected_whatever_they_have(
    small_world: NtfWorld,
) -> None:
    phone = await small_world.registered()
    await phone.subscribe(await small_world.queue())
    small_world.limits = Limits(inactive_after=0.2, check_interval=0.05)
    await small_world.restart_ntf(phone)
    await until(lambda: not phone.client.is_connected)
    await until(lambda: not small_world.router.clients)


async def test_the_store_of_a_killed_router_is_consistent(url: str) -> None:
    """Nothing is subscribed before a router has started, whatever its predecessor wrote."""
    database = await Database.open(url, MIGRATIONS)
    await database.write(
        lambda tx: tx.execute(
            "INSERT INTO servers (server_id, address) VALUES (1, ?)",
            ("smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@127.0.0.1:1",),
        )
    )
    row = (b"s", b"t", 1, b"n", b"k", "ACTIVE", b"", 0)
    columns = subscriptions.COLUMNS
    await database.write(
        lambda tx: tx.execute(
            f"INSERT INTO subscriptions ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row
        )
    )
    await database.close()
    router = await NtfRouter.start(url, {}, SETTINGS)

    async def is_inactive() -> bool:
        [[status]] = await router.store.read(
            lambda tx: tx.query("SELECT status FROM subscriptions")
        )
        return bool(status == "INACTIVE")

    await eventually(is_inactive)
    await router.close()
