"""A refusal costs the same whether the queue exists or not.

The work is counted: checks of authorizations and statements of the store, for each command that
names a queue, with the queue in the cache and not, over both stores. One measurement of times
guards against what is not counted. It fails if the share of pairs in which the known queue took
longer and the ratio of the medians leave their tolerances three times in a row. Without a leak the
share has a standard deviation of 1 / sqrt(6 * ROUNDS) = 0.033. A row that is read from PostgreSQL
costs a few hundredths of a round trip on the loopback interface, which the ratio allows.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.crypto.authorization import verify_authorization
from heliograph.db.postgres import PostgresDialect
from heliograph.db.sqlite import SqliteDialect
from heliograph.wire import smp
from heliograph.wire.smp.fields import MsgFlags, QueueMode
from tests.ntf.test_timing import slower_share
from tests.smp.support import AUTH, OK, Peer, Queue, World, create, create_notified, keys

ROUNDS = 150
SHARE_TOLERANCE = 0.2
RATIO_TOLERANCE = 1.2
ATTEMPTS = 3

WRONG = keys()
WRONG_KEY = keys().private
LINK = b"l" * 24

Command = tuple[Any, Callable[[Queue], bytes]]

COMMANDS: dict[str, Command] = {
    "SUB": (smp.SUB(), lambda queue: queue.rcv_id),
    "GET": (smp.GET(), lambda queue: queue.rcv_id),
    "ACK": (smp.ACK(b"m" * 24), lambda queue: queue.rcv_id),
    "KEY": (smp.KEY(WRONG.public), lambda queue: queue.rcv_id),
    "NKEY": (smp.NKEY(WRONG.public, WRONG.public), lambda queue: queue.rcv_id),
    "NDEL": (smp.NDEL(), lambda queue: queue.rcv_id),
    "OFF": (smp.OFF(), lambda queue: queue.rcv_id),
    "DEL": (smp.DEL(), lambda queue: queue.rcv_id),
    "QUE": (smp.QUE(), lambda queue: queue.rcv_id),
    "LDEL": (smp.LDEL(), lambda queue: queue.rcv_id),
    "SKEY": (smp.SKEY(WRONG.public), lambda queue: queue.snd_id),
    "SEND": (smp.SEND(MsgFlags(True), b"hello"), lambda queue: queue.snd_id),
    "NSUB": (smp.NSUB(), lambda queue: queue.notifier_id),
    "LKEY": (smp.LKEY(WRONG.public), lambda queue: LINK),
}


class Work:
    """Counts what the router does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checks = 0
        self.statements = 0

        def counted_check(*arguments: Any) -> bool:
            self.checks += 1
            return verify_authorization(*arguments)

        monkeypatch.setattr("heliograph.smp.verify.verify_authorization", counted_check)
        for dialect in (SqliteDialect, PostgresDialect):
            query = dialect.query

            def counted_query(one: Any, *arguments: Any, query: Any = query) -> Any:
                self.statements += 1
                return query(one, *arguments)

            monkeypatch.setattr(dialect, "query", counted_query)

    def take(self) -> tuple[int, int]:
        found = self.checks, self.statements
        self.checks = self.statements = 0
        return found


async def secured(peer: Peer) -> Queue:
    queue = await create_notified(peer)
    await queue.secure(peer)
    for _ in range(3):
        assert await queue.send(peer, b"hello") == OK
    return queue


async def unsecured(peer: Peer) -> Queue:
    return await create_notified(peer)


async def contact(peer: Peer) -> Queue:
    queue = await create(peer, mode=QueueMode.CONTACT, subscribe=False)
    await queue.nkey(peer)
    assert await queue.by_recipient(peer, smp.LSET(LINK, b"fixed", b"user")) == OK
    return queue


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("make", [secured, unsecured, contact])
async def test_the_work_of_a_refusal(
    world: World,
    make: Callable[[Peer], Any],
    warm: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alice, stranger = await world.connect(), await world.connect()
    queue = await make(alice)
    await world.arrived()
    work = Work(monkeypatch)
    for name, (command, id_of) in COMMANDS.items():
        if make is unsecured and name == "SKEY":
            continue  # anybody may secure it
        found = []
        for entity_id in (id_of(queue), os.urandom(24)):
            if not warm:
                world.router.queues.clear()
            work.take()
            assert await stranger.ask(command, entity_id, WRONG_KEY) == AUTH, name
            found.append(work.take())
        known, unknown = found
        assert known == unknown, name
        assert known == (1, 1), name
    assert (await world.router.store.counts())[0] == 1


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
async def test_the_time_of_a_refusal(world: World, warm: bool) -> None:
    alice, stranger = await world.connect(), await world.connect()
    queue = await secured(alice)
    await world.arrived()
    for name in ("SUB", "SEND"):
        command, id_of = COMMANDS[name]
        for _ in range(ATTEMPTS):
            times: tuple[list[float], list[float]] = [], []
            for index in range(2 * ROUNDS):
                if not warm:
                    world.router.queues.clear()
                entity_id = os.urandom(24) if index % 2 else id_of(queue)
                began = time.perf_counter()
                assert await stranger.ask(command, entity_id, WRONG_KEY) == AUTH
                times[index % 2].append(time.perf_counter() - began)
            share = slower_share(*times)
            low, high = sorted(map(statistics.median, times))
            if abs(share - 0.5) <= SHARE_TOLERANCE or high <= low * RATIO_TOLERANCE:
                break
        else:
            pytest.fail(f"the time of {name} tells whether the queue exists: {share:.2f}")
