"""What must not happen, and what is left standing if it does; clients that do nothing."""

import asyncio
from typing import Any

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.smp.notifications.delivery import NotificationDelivery
from heliograph.transport.server import Limits, ServerConnection
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import SPKI_PREFIX, Algorithm
from heliograph.wire.smp.fields import NewNtfCreds
from tests.smp.support import OK, World, create, create_notified, error, keys, service
from tests.waiting import until

LOW_ORDER = SPKI_PREFIX[Algorithm.X25519] + bytes(32)


async def test_keys_that_agree_on_nothing(small_world: World) -> None:
    alice, recipient = await small_world.connect(), keys()
    good = generate_key_pair(Algorithm.X25519).public
    for command in (
        smp.NEW(recipient.public, LOW_ORDER),
        smp.NEW(recipient.public, good, ntf_creds=NewNtfCreds(recipient.public, LOW_ORDER)),
    ):
        answer = await alice.ask(command, b"", recipient.private)
        assert answer == error(ErrorCode.CRYPTO)
    queue = await create_notified(alice)
    nkey = smp.NKEY(recipient.public, LOW_ORDER)
    assert await queue.by_recipient(alice, nkey) == error(ErrorCode.CRYPTO)
    assert await queue.nsub(alice) == smp.SOK()
    assert (await small_world.router.store.counts())[0] == 1


async def test_inactive_clients_leave_unless_they_are_subscribed(sqlite_url: str) -> None:
    world = World(sqlite_url)
    world.limits = Limits(inactive_after=1.0, check_interval=0.02)
    await world.start()
    try:
        idle, alice, getter = [await world.connect() for _ in range(3)]
        queue = await create_notified(alice)
        recipient, notified = await world.connect(), await world.connect()
        assert await queue.get(getter) == OK
        await queue.sub(recipient)
        await queue.nsub(notified)
        ntf = await world.connect(service=service())
        await ntf.nsubs()
        inactive = (idle, alice, getter)
        await until(lambda: not any(peer.client.is_connected for peer in inactive))
        await asyncio.sleep(1.2)
        assert all(peer.client.is_connected for peer in (recipient, notified, ntf))
    finally:
        await world.stop()


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_command_that_breaks_the_router_costs_its_connection(
    small_world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    in_memory: bool,
) -> None:
    alice, bob = await small_world.connect(), await small_world.connect()
    queue = await create(alice)

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setitem(small_world.router.handlers.by_command, smp.QUE, fail)
    if not in_memory:
        small_world.router.queues.clear()
    requests = [bob.client.request(smp.QUE(), queue.rcv_id, queue.recipient.private)]
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert isinstance(results[0], Exception)
    await until(lambda: not bob.client.is_connected)
    assert "the router failed on a connection" in caplog.text
    assert await queue.send(alice, b"hello") == OK
    assert queue.body(await alice.push(queue.rcv_id)) == b"hello"


async def test_a_connection_that_cannot_be_sent_to_costs_no_other(
    small_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = await small_world.connect(), await small_world.connect()
    queue = await create(alice)
    broken = small_world.router.subscribers.recipients[queue.rcv_id].connection
    send_all = ServerConnection.send_all

    def failing(connection: ServerConnection, *arguments: Any) -> None:
        if connection is broken:
            raise ZeroDivisionError
        send_all(connection, *arguments)

    monkeypatch.setattr(ServerConnection, "send_all", failing)
    assert await queue.send(bob, b"hello") == OK
    await until(lambda: not alice.client.is_connected)
    assert await queue.receive_all(bob) == [b"hello"]


async def test_delivery_goes_on_after_a_cycle_that_failed(
    small_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alice, ntf = await small_world.connect(), await small_world.connect()
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    failures = 0

    def fail(_: NotificationDelivery) -> None:
        nonlocal failures
        failures += 1
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(NotificationDelivery, "remove_confirmed", fail)
        await until(lambda: failures >= 2)
    await queue.send(alice, b"hello")
    await ntf.push(queue.notifier_id)
    await small_world.arrived()
    assert await small_world.notifications() == 0
    assert "a delivery cycle failed" in caplog.text


async def test_a_continuation_that_fails_costs_no_other(
    small_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    alice = await small_world.connect()
    queue = await create(alice)

    def fail(_: object) -> None:
        raise ZeroDivisionError

    small_world.router.store.changes.then(fail, fail)
    assert await queue.send(alice, b"hello") == OK
    assert "continuing after a commit failed" in caplog.text


@pytest.mark.parametrize("what", ["unknown", "known"])
async def test_a_wrong_authorization_is_verified_either_way(
    small_world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Unknown entity, wrong key and wrong kind of key: the same answer after the same work."""
    alice = await small_world.connect()
    queue = await create_notified(alice)
    work: list[str] = []
    for name in ("verify", "verify_authenticator"):
        real = getattr(__import__("heliograph.crypto.authorization", fromlist=["x"]), name)

        def counting(*arguments: Any, real: Any = real, name: str = name) -> Any:
            work.append(name)
            return real(*arguments)

        monkeypatch.setattr(f"heliograph.crypto.authorization.{name}", counting)
    ids = (queue.rcv_id, queue.snd_id, queue.notifier_id) if what == "known" else (bytes(24),) * 3
    commands = (smp.SUB(), smp.SKEY(keys().public), smp.NSUB())
    for entity_id, command in zip(ids, commands, strict=True):
        for kind, done in ((19, "verify_authenticator"), (6, "verify")):
            work.clear()
            answer = await alice.ask(command, entity_id, keys(kind).private)
            assert answer == error(ErrorCode.AUTH)
            assert work == [done]
