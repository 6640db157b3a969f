"""Every notification can be followed in the journal, and is settled there as it is in the store."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.journal.hashing import notification_id
from heliograph.journal.identity import journal_identity
from heliograph.journal.journal import NO_JOURNAL
from heliograph.journal.storage.writer import JournalWriter
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.sim.providers.script import ScriptRule
from heliograph.wire import ntf
from heliograph.wire.ntf.tokens import SubscriptionState, TokenStatus
from tests.journal.recorder import Noted, Notes, hashed
from tests.ntf.support import SETTINGS, NtfWorld, Phone, a_world
from tests.smp.support import Queue
from tests.waiting import eventually, until

SETTLING = ("push_accepted", "push_expired", "token_invalid", "token_deleted")
OUTCOMES = ("nmsg_stored", "nmsg_repeated", "nmsg_unknown", "nmsg_dropped")


def settled(notes: Notes) -> dict[str, Noted | None]:
    """By notification, what settled it; as the ledger does it."""
    settling = [event for event in notes.events if event.kind in SETTLING]
    settling = [event for event in settling if "through" in event.columns]
    found: dict[str, Noted | None] = {}
    for stored in notes.of("nmsg_stored"):
        found[stored.notification] = next(
            (
                event
                for event in settling
                if event["token"] == stored["token"] and event["through"] >= stored["ntf_seq"]
            ),
            None,
        )
    return found


def each_nmsg_has_one_outcome(notes: Notes) -> bool:
    received = Counter(event.notification for event in notes.of("nmsg_received"))
    decided = Counter(event.notification for event in notes.events if event.kind in OUTCOMES)
    return received == decided


async def a_phone(world: NtfWorld, count: int = 1) -> tuple[Phone, list[Queue]]:
    phone = await world.registered()
    queues = await world.queues(count)
    for queue in queues:
        await phone.subscribe(queue)
    world.apns.skip(phone.device)
    return phone, queues


@pytest.fixture
async def own_world(sqlite_url: str, tmp_path: Path) -> AsyncIterator[NtfWorld]:
    settings = replace(SETTINGS, own_domains=("127.0.0.1",))
    async with a_world(sqlite_url, tmp_path, settings) as world:
        yield world


async def test_the_path_of_a_notification(own_world: NtfWorld) -> None:
    world = own_world
    phone, [queue] = await a_phone(world)
    await world.send(queue)
    [message] = await phone.notified()
    await world.until_none_pending()
    await until(lambda: settled(world.journal)[notification_id(message.nonce)])
    notes = world.journal
    [registered] = notes.of("token_registered")
    token = hashed("token", phone.token_id)
    assert registered["token"] == token
    [created] = notes.of("subscription_created")
    subscription = hashed("subscription", phone.subscriptions[0])
    assert (created["token"], created["subscription"]) == (token, subscription)
    assert [
        (event["subscription"], event["status"]) for event in notes.of("subscription_status")
    ] == [(subscription, "ACTIVE")]
    notification = notification_id(message.nonce)
    for kind in ("notification_stored", "notification_delivered"):
        assert [event.notification for event in world.smp.journal.of(kind)] == [notification]
    [received], [stored] = notes.of("nmsg_received"), notes.of("nmsg_stored")
    assert received.notification == stored.notification == notification
    assert (stored["token"], stored["subscription"]) == (token, subscription)
    assert (stored["own_server"], stored["smp_host"]) == (True, "127.0.0.1")
    push, attempted, accepted = (
        next(event for event in notes.of(kind) if event["mode"] == "message")
        for kind in ("push_pending", "push_attempted", "push_accepted")
    )
    assert push["push"] == attempted["push"] == accepted["push"]
    assert accepted["notifications"] == [notification]
    assert push["through"] == accepted["through"] == stored["ntf_seq"]
    assert accepted["attempt"] == 1
    [up] = notes.of("smp_up")
    assert up["server"] == hashed("server", str(world.smp.address).encode())
    [subscribed] = notes.of("smp_subscribed")
    assert (subscribed["count"], subscribed["expected_count"]) in ((0, 0), (1, 1))


async def test_hosts_of_others_are_not_journaled(small_world: NtfWorld) -> None:
    phone, [queue] = await a_phone(small_world)
    await small_world.send(queue)
    await phone.notified()
    for kind in ("smp_up", "nmsg_received", "nmsg_stored", "subscription_created"):
        for event in small_world.journal.of(kind):
            assert event["own_server"] is False
            assert "smp_host" not in event.columns


async def test_what_a_newer_one_replaced(small_world: NtfWorld) -> None:
    world = small_world
    phone, [queue, other] = await a_phone(world, 2)
    world.apns.play(ScriptRule(status=503, times=3))
    await world.send(queue, queue, queue, other)
    await phone.notified_of(queue, other)
    await world.until_none_pending()
    notes = world.journal
    await until(lambda: all(settled(notes).values()))
    stored = notes.of("nmsg_stored")
    assert len(stored) == 4
    carried = {
        item
        for event in notes.of("push_accepted")
        for item in event.columns.get("notifications", ())
    }
    assert {stored[2].notification, stored[3].notification} <= carried
    assert each_nmsg_has_one_outcome(notes)
    retried = [event for event in notes.of("push_retried") if event["mode"] == "message"]
    assert {(event["status"], event["code"]) for event in retried} == {("later", 503)}
    assert {event["code"] for event in notes.of("push_accepted")} == {200}


async def test_what_an_invalid_token_takes_along(small_world: NtfWorld) -> None:
    world = small_world
    _, [queue] = await a_phone(world)
    world.apns.play(ScriptRule(status=410, reason="Unregistered"))
    await world.send(queue, queue)
    await until(lambda: world.journal.of("token_invalid"))
    notes = world.journal
    await until(lambda: each_nmsg_has_one_outcome(notes) and len(notes.of("nmsg_received")) == 2)
    for event in settled(notes).values():
        assert event is not None
        assert event.kind == "token_invalid"
    [rejected] = notes.of("push_rejected")
    assert (rejected["reason"], rejected["code"]) == ("UNREGISTERED", 410)
    await world.send(queue)
    await until(lambda: notes.of("nmsg_dropped"))
    [dropped] = notes.of("nmsg_dropped")[-1:]
    assert dropped["status"] == TokenStatus.INVALID_UNREGISTERED.value
    assert each_nmsg_has_one_outcome(notes)


async def test_what_is_deleted(small_world: NtfWorld) -> None:
    world = small_world
    phone, [queue, other] = await a_phone(world, 2)
    world.apns.play(ScriptRule(status=503))
    await world.send(queue, other)
    await until(lambda: len(world.journal.of("nmsg_stored")) == 2)
    assert await phone.ask(ntf.SDEL(), phone.subscriptions[0]) == ntf.OK()
    [deleted] = world.journal.of("subscription_deleted")
    assert deleted["subscription"] == hashed("subscription", phone.subscriptions[0])
    assert deleted["through"] >= world.journal.of("nmsg_stored")[0]["ntf_seq"]
    assert await phone.ask(ntf.TDEL(), phone.token_id) == ntf.OK()
    for event in settled(world.journal).values():
        assert event is not None
        assert event.kind == "token_deleted"
    # The messaging router sends until it is unsubscribed.
    await world.send(other)
    await until(lambda: world.journal.of("nmsg_unknown"))
    assert each_nmsg_has_one_outcome(world.journal)


async def test_another_registration_of_the_device(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    again = await small_world.registered(phone.device)
    [deleted] = small_world.journal.of("token_deleted")
    assert (deleted["token"], deleted["reason"]) == (hashed("token", phone.token_id), "superseded")
    assert again.token_id != phone.token_id


async def test_pending_pushes_are_journaled_at_the_start(small_world: NtfWorld) -> None:
    world = small_world
    phone, [queue] = await a_phone(world)
    world.apns.play(ScriptRule(status=503))
    await world.send(queue)
    await until(lambda: world.journal.of("nmsg_stored"))
    [stored] = world.journal.of("nmsg_stored")
    await world.stop_ntf()
    assert world.journal.events[-1].kind == "router_stopped"
    world.journal = Notes("ntf")
    await world.start_ntf()
    await until(lambda: world.journal.of("router_recovered"))
    notes = world.journal
    assert notes.events[0].kind == "router_started"
    assert notes.events[0]["through"] >= stored["ntf_seq"]
    [recovered] = notes.of("router_recovered")
    [push] = [event for event in notes.of("push_pending") if event.columns.get("reason")]
    assert (recovered["count"], push["reason"], push["attempt"]) == (1, "recovered", 0)
    assert push["notifications"] == [stored.notification]
    assert (push["through"], push["token"]) == (stored["ntf_seq"], stored["token"])
    world.apns.play()
    phone.client = await world.connect()
    await world.until_none_pending()
    await until(lambda: any("notifications" in item.columns for item in notes.of("push_accepted")))
    # Numbers go on: later ones are later, also over runs.
    await phone.until_state(phone.subscriptions[0], SubscriptionState.ACTIVE)
    await world.send(queue)
    await until(lambda: notes.of("nmsg_stored"))
    assert notes.of("nmsg_stored")[0]["ntf_seq"] > notes.events[0]["through"]


async def test_commands_are_counted(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    for _ in range(3):
        await phone.tchk()
    assert await phone.ask(ntf.TCRN(30), phone.token_id) == ntf.OK()
    await small_world.stop_ntf()
    counted = {
        event["command"]: event["count"] for event in small_world.journal.of("commands_counted")
    }
    assert (counted["TNEW"], counted["TVFY"], counted["TCHK"], counted["TCRN"]) == (1, 1, 3, 1)
    assert [event["count"] for event in small_world.journal.of("client_connected")] == [1]
    [periodic] = small_world.journal.of("token_periodic")
    assert periodic["interval"] == 30
    await small_world.start_ntf()


async def test_all_is_accounted_for(small_world: NtfWorld) -> None:
    """Under trouble of all kinds: everything stored is settled in the end, or still pending."""
    world = small_world
    phones = [await a_phone(world, 3) for _ in range(3)]
    notes = world.journal
    for round_ in range(4):
        world.apns.play(ScriptRule(status=503, times=2), ScriptRule(status=429, times=1))
        for _, queues in phones:
            await world.send(*queues, *queues)
        if round_ == 1:
            await world.restart_ntf(*(phone for phone, _ in phones))
        if round_ == 2:
            await world.restart_smp()
        for phone, _ in phones:
            for subscription in phone.subscriptions:
                await phone.until_state(subscription, SubscriptionState.ACTIVE)
    world.apns.play()

    async def is_all_settled() -> bool:
        sent = {event.notification for event in world.smp.journal.of("notification_stored")}
        return sent <= settled(notes).keys() and all(settled(notes).values())

    await eventually(is_all_settled, 30.0)
    assert len(settled(notes)) == 4 * 3 * 6
    assert each_nmsg_has_one_outcome(notes)
    accepted = world.router.stats.counters.ntf_delivered
    assert accepted <= len(
        [event for event in notes.of("push_accepted") if event["mode"] == "message"]
    )


def test_logs_name_own_servers_and_hash_others(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path / "journal", journal_identity(tmp_path), "ntf")
    try:
        observer = NtfObserver(journal, own_domains=("example.org",))
        fingerprint = "A" * 43 + "="
        observer.server_added(1, f"smp://{fingerprint}@smp.example.org")
        observer.server_added(2, f"smp://{fingerprint}@smp.elsewhere.net")
        observer.server_added(3, f"smp://{fingerprint}@smp.third.net")
        assert observer.server_label(1) == "smp.example.org"
        labels = {observer.server_label(2), observer.server_label(3)}
        assert len(labels) == 2
        assert not any("." in label for label in labels)
    finally:
        journal.close()
    assert NtfObserver(NO_JOURNAL).server_label(1) == "other"
