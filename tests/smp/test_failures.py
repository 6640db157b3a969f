"""A store that fails: it is reported, changes are undone, and no client gets a wrong answer."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.db.errors import DatabaseError
from heliograph.db.sqlite import SqliteDialect
from heliograph.transport.client import ClientRequest
from heliograph.transport.errors import HandshakeFailed
from heliograph.wire import smp
from heliograph.wire.errors import STORE
from tests.smp.support import (
    AUTH,
    OK,
    Peer,
    Queue,
    World,
    a_world,
    create,
    create_notified,
    service,
)
from tests.waiting import until

FAILED = smp.ERR(STORE("the router's store failed"))


class Disk:
    """Commits, or reads, fail while it says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.is_unreadable = False
        self.refused = 0
        commit, query = SqliteDialect.commit, SqliteDialect.query

        def failing_commit(dialect: SqliteDialect) -> None:
            if self.is_full:
                self.refused += 1
                raise DatabaseError("database or disk is full")
            commit(dialect)

        def failing_query(dialect: SqliteDialect, sql: str, parameters: Any) -> Any:
            if self.is_unreadable:
                raise DatabaseError("disk I/O error")
            return query(dialect, sql, parameters)

        monkeypatch.setattr(SqliteDialect, "commit", failing_commit)
        monkeypatch.setattr(SqliteDialect, "query", failing_query)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_a_message_that_cannot_be_stored(disk: Disk, small_world: World) -> None:
    alice, bob, ntf = [await small_world.connect() for _ in range(3)]
    queue = await create_notified(alice, subscribe=True)
    await queue.nsub(ntf)
    disk.is_full = True
    assert await queue.send(bob, b"lost") == FAILED
    assert await alice.is_quiet()
    assert await ntf.is_quiet(0)
    disk.is_full = False
    assert await queue.send(bob, b"kept") == OK
    message = await alice.push(queue.rcv_id)
    assert queue.body(message) == b"kept"
    await ntf.push(queue.notifier_id)
    assert await queue.ack(alice, message) == OK
    assert await small_world.router.store.counts() == (1, 1, 0, await small_world.notifications())
    assert small_world.router.observer.counters.store_failures >= 1


async def test_it_is_known_whether_the_store_fails(
    disk: Disk, small_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, and not for every command; a write that succeeds ends it, a read does not."""
    alice, store = await small_world.connect(), small_world.router.store
    queue = await create(alice, subscribe=False)
    await store.check()
    assert not store.is_failing
    disk.is_full = True
    for _ in range(3):
        assert await queue.send(alice, b"lost") == FAILED
    assert store.is_failing
    assert caplog.text.count("the store failed") == 1
    with pytest.raises(DatabaseError):
        await store.check()
    assert await queue.sub(alice) == smp.SOK()
    assert store.is_failing
    disk.is_full = False
    await store.check()
    assert not store.is_failing
    disk.is_full = True
    assert await queue.send(alice, b"lost") == FAILED
    disk.is_full = False
    assert await queue.send(alice, b"kept") == OK
    assert not store.is_failing


async def test_everything_decided_on_top_is_void(disk: Disk, small_world: World) -> None:
    """Also what was decided while the failing batch was in progress."""
    alice, bob = await small_world.connect(), await small_world.connect()
    queue = await create(alice, subscribe=False)
    disk.is_full = True
    answers = await asyncio.gather(
        *(
            peer.ask_many([queue.sending(b"%d" % n) for n in range(20)])
            for peer in (alice, bob)
            for _ in range(3)
        )
    )
    assert all(answer == FAILED for group in answers for answer in group)
    disk.is_full = False
    assert await queue.size(alice) == 0
    assert await queue.send(bob, b"kept") == OK
    assert await queue.receive_all(alice) == [b"kept"]


async def _key(peer: Peer, queue: Queue) -> Any:
    return await queue.secure(peer)


async def _skey(peer: Peer, queue: Queue) -> Any:
    return await queue.secure_by_sender(peer)


async def _off(peer: Peer, queue: Queue) -> Any:
    return await queue.by_recipient(peer, smp.OFF())


async def _ndel(peer: Peer, queue: Queue) -> Any:
    return await queue.ndel(peer)


async def _nkey(peer: Peer, queue: Queue) -> Any:
    notifier = queue.notifier
    assert notifier is not None
    return await queue.by_recipient(peer, smp.NKEY(notifier.auth.public, notifier.dh.public))


async def _del(peer: Peer, queue: Queue) -> Any:
    return await queue.delete(peer)


@pytest.mark.parametrize("change", [_key, _skey, _off, _ndel, _nkey, _del])
async def test_a_change_that_cannot_be_stored(
    disk: Disk, small_world: World, change: Callable[[Peer, Queue], Any]
) -> None:
    """The queue is as before; its subscribers stay, and hear of nothing."""
    alice, bob, phone, ntf = [await small_world.connect() for _ in range(4)]
    queue = await create_notified(alice)
    assert await queue.sub(phone) == smp.SOK()
    assert await queue.nsub(ntf) == smp.SOK()
    disk.is_full = True
    assert await change(alice, queue) == FAILED
    queue.sender = None
    assert await phone.is_quiet()
    assert await ntf.is_quiet(0)
    disk.is_full = False
    assert await queue.send(bob, b"hello") == OK
    assert queue.body(await phone.push(queue.rcv_id)) == b"hello"
    await ntf.push(queue.notifier_id)


async def test_a_queue_that_cannot_be_made(disk: Disk, small_world: World) -> None:
    alice = await small_world.connect()
    disk.is_full = True
    with pytest.raises(AssertionError, match="STORE"):
        await create(alice)
    disk.is_full = False
    assert len(small_world.router.queues) == 0
    assert (await small_world.router.store.counts())[0] == 0
    await create(alice)


async def test_an_acknowledgement_that_cannot_be_stored(disk: Disk, small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice)
    await queue.send(alice, b"one")
    await queue.send(alice, b"two")
    message = await alice.push(queue.rcv_id)
    disk.is_full = True
    assert await queue.ack(alice, message) == FAILED
    disk.is_full = False
    assert await queue.receive_all(alice) == [b"one", b"two"]


async def test_an_association_that_cannot_be_stored(disk: Disk, small_world: World) -> None:
    alice, plain = await small_world.connect(), await small_world.connect()
    ntf = await small_world.connect(service=service())
    queue, other = await create_notified(alice), await create_notified(alice)
    await other.nsub(ntf)
    await queue.nsub(plain)
    before = await ntf.nsubs()
    disk.is_full = True
    assert await queue.nsub(ntf) == FAILED
    assert await other.nsub(plain) == FAILED
    assert await plain.is_quiet()
    disk.is_full = False
    assert await ntf.nsubs() == before
    await queue.send(alice, b"hello")
    await plain.push(queue.notifier_id)
    await other.send(alice, b"hello")
    await ntf.push(other.notifier_id)
    assert await queue.nsub(ntf) == smp.SOK(ntf.service_id)
    assert await plain.push() == smp.END()
    assert (await ntf.nsubs()).count == 2
    await small_world.restart()
    ntf = await small_world.connect(service=service())
    assert (await ntf.nsubs()).count == 2


async def test_a_service_that_cannot_be_stored(disk: Disk, small_world: World) -> None:
    disk.is_full = True
    with pytest.raises(HandshakeFailed):
        await small_world.connect(service=service())
    disk.is_full = False
    ntf = await small_world.connect(service=service())
    assert small_world.router.services.keys() == {ntf.service_id}


async def test_what_arrived_and_cannot_be_removed(disk: Disk, small_world: World) -> None:
    alice, ntf = await small_world.connect(), await small_world.connect()
    queue = await create_notified(alice)
    await queue.nsub(ntf)
    await queue.send(alice, b"hello")
    disk.is_full = True
    await ntf.push(queue.notifier_id)
    await until(lambda: disk.refused >= 2)
    disk.is_full = False
    await small_world.arrived()
    assert await small_world.notifications() == 0
    assert await ntf.is_quiet()


async def test_a_store_that_cannot_be_read(disk: Disk, small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"hello")
    small_world.router.queues.clear()
    disk.is_unreadable = True
    assert await queue.sub(alice) == FAILED
    assert await alice.ask(smp.PING()) == smp.PONG()
    disk.is_unreadable = False
    assert await queue.sub(alice) == smp.SOK()
    message = await alice.push(queue.rcv_id)
    disk.is_unreadable = True
    assert await queue.by_recipient(alice, smp.QUE()) == FAILED
    disk.is_unreadable = False
    assert await queue.sub(alice) == smp.SOK()
    assert await alice.push(queue.rcv_id) == message


async def test_subscribing_fails_and_later_messages_come(disk: Disk, small_world: World) -> None:
    alice, bob = await small_world.connect(), await small_world.connect()
    queue = await create(alice)
    await queue.send(bob, b"one")
    message = await alice.push(queue.rcv_id)
    disk.is_unreadable = True
    assert await queue.sub(alice) == FAILED
    disk.is_unreadable = False
    getter = await small_world.connect()
    assert await queue.get(getter) == message
    assert await queue.ack(getter, message) == OK
    assert await queue.send(bob, b"two") == OK
    assert queue.body(await alice.push(queue.rcv_id)) == b"two"


async def test_notifications_that_cannot_be_read_are_tried_again(
    disk: Disk, small_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.smp.notifications.delivery.RETRY_DELAY", 0.01)
    alice, ntf = await small_world.connect(), await small_world.connect()
    queue = await create_notified(alice)
    await queue.send(alice, b"hello")
    disk.is_unreadable = True
    assert await queue.nsub(ntf) == smp.SOK()
    assert await ntf.is_quiet()
    disk.is_unreadable = False
    await ntf.push(queue.notifier_id)


async def test_messages_held_back_and_then_unreadable(disk: Disk, small_world: World) -> None:
    """Better to lose the connection than to wait for ever."""
    alice, bob = await small_world.connect(), await small_world.connect()
    queue = await create(alice)
    client = small_world.router.subscribers.recipients[queue.rcv_id]
    client.connection.pause_writing()
    await queue.send(bob, b"hello")
    disk.is_unreadable = True
    client.connection.resume_writing()
    await until(lambda: not alice.client.is_connected)
    disk.is_unreadable = False
    assert await queue.receive_all(await small_world.connect()) == [b"hello"]


async def test_expiry_that_fails_is_tried_again(disk: Disk, small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"hello")
    disk.is_full = True
    with pytest.raises(DatabaseError):
        await small_world.router.expire(1e12)
    disk.is_full = False
    assert await queue.size(alice) == 1
    await small_world.router.expire(1e12)
    assert await queue.size(alice) == 0


async def test_a_disk_that_is_really_full(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = 0
    define = SqliteDialect.define

    def limited(dialect: SqliteDialect, sql: str) -> None:
        define(dialect, sql)

    begin = SqliteDialect.begin

    def with_limit(dialect: SqliteDialect) -> None:
        dialect.query(f"PRAGMA max_page_count={pages or 1_000_000}", ())
        begin(dialect)

    monkeypatch.setattr(SqliteDialect, "define", limited)
    monkeypatch.setattr(SqliteDialect, "begin", with_limit)
    async with a_world(sqlite_url) as world:
        alice = await world.connect()
        queue = await create(alice, subscribe=False)
        assert await queue.send(alice, b"kept") == OK
        pages = 1  # it cannot shrink below what is there
        sent: list[bytes | None] = [b"kept"]
        answer: Any = OK
        while answer == OK:
            answer = await queue.send(alice, body := bytes(8000))
            if answer == OK:
                sent.append(body)
        assert answer == FAILED
        pages = 0
        assert await queue.send(alice, b"again") == OK
        assert await queue.receive_all(alice) == [*sent, b"again"]


async def test_answers_that_rely_on_what_is_not_durable_wait_for_it(
    disk: Disk, small_world: World
) -> None:
    """A second KEY would be answered OK at once, for a first that is not stored yet."""
    alice = await small_world.connect()
    queue = await create_notified(alice)
    key = smp.KEY(queue.recipient.public)
    disk.is_full = True

    def by_recipient(command: Any) -> ClientRequest[Any]:
        return ClientRequest(command, queue.rcv_id, queue.recipient.private)

    for commands in ([key, key], [smp.NDEL(), smp.NDEL()]):
        answers = await alice.ask_many([by_recipient(command) for command in commands])
        assert answers == [FAILED, FAILED]
    disk.is_full = False
    assert await queue.send(alice, b"not secured") == OK
    assert await queue.nsub(alice) == smp.SOK()


async def test_deleting_fails_while_another_waits_for_it(disk: Disk, small_world: World) -> None:
    alice, bob = await small_world.connect(), await small_world.connect()
    queue = await create_notified(alice)
    disk.is_full = True
    deleted, sent = await asyncio.gather(queue.delete(alice), queue.send(bob, b"hello"))
    assert deleted == FAILED
    assert sent == FAILED  # and not AUTH: the queue is there
    disk.is_full = False
    assert await queue.send(bob, b"hello") == OK
    assert await queue.sub(alice) != AUTH
