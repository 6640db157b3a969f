"""From NMSG to a push that the provider accepted, with a simulated APNs that misbehaves."""

import asyncio
import time
from dataclasses import replace

import pytest

from heliograph.db.dialects import Transaction
from heliograph.ntf.push import outbox
from heliograph.ntf.push.outbox import OutboxSettings
from heliograph.ntf.router import NtfSettings
from heliograph.push.provider import RetryLater
from heliograph.sim.providers.http2 import Act
from heliograph.sim.providers.script import ScriptRule
from heliograph.wire import ntf, smp
from heliograph.wire.ntf.push import CheckMessagesPush
from heliograph.wire.ntf.tokens import PushProvider, TokenStatus
from tests.ntf.support import FAST, OK, SETTINGS, NtfWorld, Phone, Recorder, a_device
from tests.smp.support import Queue
from tests.waiting import eventually, until


async def subscribed(world: NtfWorld, count: int = 1) -> tuple[Phone, list[Queue]]:
    phone = await world.registered()
    queues = await world.queues(count)
    for queue in queues:
        await phone.subscribe(queue)
    return phone, queues


async def test_a_reset_is_retried_at_once(small_world: NtfWorld) -> None:
    phone, [queue] = await subscribed(small_world)
    small_world.apns.play(ScriptRule(act=Act.RESET, times=1))
    await small_world.send(queue)
    await phone.notified_of(queue)
    await small_world.until_none_pending()
    counters = small_world.router.stats.counters
    assert (counters.ntf_delivered, counters.ntf_failed) == (1, 0)


async def test_then_on_schedule(world: NtfWorld) -> None:
    phone, [queue] = await subscribed(world)
    world.apns.play(ScriptRule(act=Act.RESET, times=3), ScriptRule(status=500, times=2))
    await world.send(queue)
    await phone.notified_of(queue)
    await world.until_none_pending()
    counters = world.router.stats.counters
    assert counters.ntf_delivered == 1
    assert counters.ntf_failed == 4  # the immediate retry is part of the first attempt


async def test_429_is_honoured(world: NtfWorld) -> None:
    phone, [queue] = await subscribed(world)
    world.apns.play(ScriptRule(status=429, retry_after=1, times=1))
    await world.send(queue)
    await until(lambda: world.router.stats.counters.ntf_failed)
    refused_at = time.monotonic()
    await world.send(queue)
    await phone.notified_of(queue)
    assert time.monotonic() - refused_at > 0.8
    assert world.apns.attempts(phone.device) == 3  # verification, 429, accepted


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (400, "BadDeviceToken", TokenStatus.INVALID_BAD),
        (400, "DeviceTokenNotForTopic", TokenStatus.INVALID_TOPIC),
        (410, "ExpiredToken", TokenStatus.INVALID_EXPIRED),
        (410, "Unregistered", TokenStatus.INVALID_UNREGISTERED),
    ],
)
async def test_a_dead_token_is_invalid_for_a_reason(
    small_world: NtfWorld, status: int, reason: str, expected: TokenStatus
) -> None:
    phone, [queue] = await subscribed(small_world)
    small_world.apns.play(ScriptRule(status=status, reason=reason))
    await small_world.send(queue)
    await phone.until_status(expected)
    await small_world.until_none_pending()
    # Only version 3 has the reason.
    for version in (1, 2):
        phone.client = await small_world.connect(version, use_alpn=version > 1)
        if version == 1:
            continue  # no X25519 there
        assert await phone.tchk() is TokenStatus.INVALID
    attempts = small_world.apns.attempts(phone.device)
    await small_world.send(queue)
    await asyncio.sleep(0.1)
    assert small_world.apns.attempts(phone.device) == attempts
    assert small_world.router.stats.counters.ntf_received_auth == 1


async def test_a_verification_may_find_the_token_dead(small_world: NtfWorld) -> None:
    small_world.apns.play(ScriptRule(status=400, reason="BadDeviceToken"))
    phone = await small_world.phone()
    await phone.tnew()
    await phone.until_status(TokenStatus.INVALID_BAD)
    counters = small_world.router.stats.counters
    assert (counters.ntf_vrf_invalid_tkn, counters.ntf_vrf_delivered) == (1, 0)


async def test_the_operator_s_fault_does_not_cost_a_push(small_world: NtfWorld) -> None:
    phone, [queue] = await subscribed(small_world)
    small_world.apns.play(ScriptRule(status=403, reason="InvalidProviderToken", times=2))
    await small_world.send(queue)
    await phone.notified_of(queue)
    assert await phone.tchk() is TokenStatus.ACTIVE
    assert small_world.router.stats.failures["InvalidProviderToken"] == 2


async def test_an_outage_delays_and_loses_nothing(world: NtfWorld) -> None:
    phones = [await subscribed(world, 2) for _ in range(5)]
    world.apns.play(ScriptRule(status=503))
    for _, queues in phones:
        await world.send(*queues)
    await until(lambda: world.router.stats.counters.ntf_failed >= 10)
    assert await world.pending_pushes() == 5
    world.apns.play()
    for phone, queues in phones:
        await phone.notified_of(*queues)
    await world.until_none_pending()


async def test_pending_pushes_survive_a_restart(world: NtfWorld) -> None:
    phone, queues = await subscribed(world, 3)
    world.apns.play(ScriptRule(status=503))
    await world.send(*queues)
    await until(lambda: world.router.stats.counters.ntf_failed)
    await world.stop_ntf()
    world.apns.play()
    await world.start_ntf()
    await phone.notified_of(*queues)
    await world.until_none_pending()


async def test_a_flood_is_few_pushes_and_every_queue_is_covered(world: NtfWorld) -> None:
    phone, queues = await subscribed(world, 6)
    world.apns.skip(phone.device)
    world.apns.play(ScriptRule(delay=0.05))
    count = 300
    await world.sender.ask_many([queues[number % 6].sending(b"x") for number in range(count)])
    await eventually(lambda: _received(world, count))
    await world.until_none_pending()
    pushes = [phone.open(push) for push in world.apns.accepted(phone.device)[1:]]
    assert len(pushes) < count / 4
    assert {item.queue.notifier_id for item in pushes[-1]} == {
        queue.notifier_id for queue in queues
    }
    # The last message of each queue, by what only its recipient can read.
    newest = {item.queue.notifier_id: item for push in pushes for item in push}
    for queue in queues:
        assert queue.notifier is not None
        reported = newest[queue.notifier_id]
        meta = queue.notifier.decrypt(smp.NMSG(reported.nonce, reported.meta))
        last = await _last_message(world, queue)
        assert meta.msg_id == last


async def _received(world: NtfWorld, count: int) -> bool:
    return world.router.stats.counters.ntf_received == count


async def _last_message(world: NtfWorld, queue: Queue) -> bytes:
    peer = await world.smp.connect()
    await queue.sub(peer)
    message = await peer.push(queue.rcv_id)
    last = message.msg_id
    while isinstance(message := await queue.ack(peer, message), smp.MSG):
        last = message.msg_id
    return bytes(last)


async def test_more_than_six_queues_push_the_six_newest(small_world: NtfWorld) -> None:
    phone, queues = await subscribed(small_world, 8)
    small_world.apns.play(ScriptRule(status=503))
    for queue in queues:
        await small_world.send(queue)
    await until(lambda: small_world.router.stats.counters.ntf_received == 8)
    small_world.apns.play()
    reported = await phone.notified()
    while reported[-1].queue.notifier_id != queues[-1].notifier_id:
        reported = await phone.notified()
    assert [item.queue.notifier_id for item in reported] == [
        queue.notifier_id for queue in queues[2:]
    ]
    assert [item.timestamp for item in reported] == sorted(item.timestamp for item in reported)


async def test_messages_go_to_active_tokens_only(small_world: NtfWorld) -> None:
    phone, [queue] = await subscribed(small_world)
    small_world.apns.play(ScriptRule(status=503))
    await small_world.send(queue)
    await until(lambda: small_world.router.stats.counters.ntf_failed)
    # A push that was pending before must not reach a device that is not verified.
    assert await phone.trpl(a_device()) == OK
    small_world.apns.play()
    code = await phone.code()
    assert await phone.is_quiet(0.5)
    assert await phone.tvfy(code) == OK
    await phone.notified_of(queue)


async def test_periodic_wake_ups(world: NtfWorld) -> None:
    phone = await world.registered()
    assert await phone.ask(ntf.TCRN(20), phone.token_id) == OK
    assert await phone.is_quiet(1.5)  # the first is due one interval after the request
    for count in (1, 2):
        await world.make_wake_ups_due()
        assert await world.apns.push(phone.device) == CheckMessagesPush()
        await until(
            lambda count=count: world.router.stats.counters.ntf_cron_delivered == count  # type: ignore[misc]
        )
        assert await phone.is_quiet()


class TestExpiry:
    @pytest.fixture
    def settings(self) -> NtfSettings:
        return replace(SETTINGS, push_ttl=1.0)

    @pytest.fixture(autouse=True)
    def frequent_expiry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "EXPIRE_INTERVAL", 0.0)

    async def test_what_is_not_delivered_in_time_expires(
        self, world: NtfWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
        phone, [queue] = await subscribed(world)
        world.apns.play(ScriptRule(status=503))
        await world.send(queue)
        await until(lambda: world.router.stats.counters.ntf_failed)
        await asyncio.sleep(1.1)
        world.router.outbox.wake()
        await world.until_none_pending()
        await until(lambda: world.router.stats.counters.ntf_expired == 1)
        assert "1 pushes expired undelivered" in caplog.text
        world.apns.play()
        assert await phone.is_quiet()
        await world.send(queue)
        await phone.notified_of(queue)


async def test_a_deleted_subscription_has_no_notification(small_world: NtfWorld) -> None:
    phone, [queue] = await subscribed(small_world)
    small_world.apns.play(ScriptRule(status=503))
    await small_world.send(queue)
    await until(lambda: small_world.router.stats.counters.ntf_failed)
    assert await phone.ask(ntf.SDEL(), phone.subscriptions[0]) == OK
    small_world.apns.play()
    await small_world.until_none_pending()
    assert len(small_world.apns.accepted(phone.device)) == 1  # the verification


class TestWindow:
    @pytest.fixture
    def settings(self) -> NtfSettings:
        return replace(SETTINGS, outbox=OutboxSettings(window=3, backoff=FAST))

    async def test_memory_is_bounded_however_much_is_pending(self, world: NtfWorld) -> None:
        slow = world.providers[PushProvider.APNS_PROD] = Recorder()
        await world.restart_ntf()
        phones: list[tuple[Phone, list[Queue]]] = []
        for _ in range(12):
            phone = await world.phone(a_device(PushProvider.APNS_TEST))
            await phone.register()
            [queue] = await world.queues(1)
            await phone.subscribe(queue)
            phones.append((phone, [queue]))
        # From a provider that works to one that does not: pending pushes move, too.
        slow.gate.clear()
        await world.router.store.database.write(_all_to_production)
        await world.restart_ntf()
        await world.send(*(queue for _, [queue] in phones))
        await until(lambda: slow.in_flight == 3)
        assert world.router.outbox.in_flight == 3
        other, [queue] = await subscribed(world)
        await world.send(queue)
        await other.notified_of(queue)  # the other provider is not slower for it
        assert slow.most_in_flight == 3
        slow.answers += [RetryLater(None, "ServiceUnavailable")] * 5
        slow.gate.set()
        await world.until_none_pending()
        assert slow.most_in_flight == 3
        assert {delivery.device.provider for delivery in slow.deliveries} == {
            PushProvider.APNS_PROD
        }


def _all_to_production(tx: Transaction) -> None:
    tx.execute("UPDATE tokens SET device = REPLACE(device, 'apns_test', 'apns_prod')")


async def test_a_push_to_the_device_before_settles_nothing_for_the_next(world: NtfWorld) -> None:
    """It is accepted after the token was replaced, and the other device never gets it."""
    phone, [queue] = await subscribed(world)
    world.apns.play(ScriptRule(delay=0.5, times=1))
    await world.send(queue)
    await until(lambda: world.router.outbox.in_flight)
    assert await phone.trpl(a_device()) == OK
    code = await phone.code()
    await until(lambda: not world.router.outbox.in_flight)
    assert await phone.tvfy(code) == OK
    await phone.notified_of(queue)
    await world.until_none_pending()


async def test_the_device_before_does_not_delay_pushes_to_the_next(world: NtfWorld) -> None:
    """Its answer, after the token was replaced, asks for a delay of minutes."""
    phone, [queue] = await subscribed(world)
    world.apns.play(ScriptRule(delay=0.5, status=429, retry_after=300, times=1))
    await world.send(queue)
    await until(lambda: world.router.outbox.in_flight)
    assert await phone.trpl(a_device()) == OK
    code = await phone.code()
    await until(lambda: not world.router.outbox.in_flight)
    assert await phone.tvfy(code) == OK
    await phone.notified_of(queue)
    await world.until_none_pending()
