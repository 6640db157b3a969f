"""The control port of the messaging router: the reference's commands, roles and answers."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from heliograph.runtime.reference import control as module
from heliograph.runtime.reference.control import Passwords
from heliograph.smp.metrics import SmpCollector
from heliograph.smp.reference import control as smp_control
from heliograph.smp.reference.control import SmpControlPort
from heliograph.smp.reference.statslog import SmpStatsLog
from heliograph.smp.store.store import SmpStore
from heliograph.wire import smp
from heliograph.wire.errors import BLOCKED, BlockingReason, ClientNotice
from heliograph.wire.primitives import b64encode
from tests.runtime.reference import control
from tests.smp.support import AUTH, OK, World, create, create_notified

USER, ADMIN = "auth users", "auth admins"
LABELS = [
    *("fromTime", "qCreated", "qSecured", "qDeletedAll", "qDeletedAllB", "qDeletedNew"),
    *("qDeletedSecured", "daily active queues", "qSub", "qSubAllB", "qSubEnd", "qSubEndB"),
    "other SUB events (auth, duplicate, prohibited)",
    *("msgSent", "msgRecv", "msgRecvGet", "msgGet", "msgGetNoMsg"),
    "other GET events (auth, duplicate, prohibited)",
    *("msgSentNtf", "msgRecvNtf", "msgNtfs", "msgNtfsB", "msgNtfExpired"),
    *("qCount", "qCount 2", "notifiers", "msgCount", "ntfCount"),
    *("pRelays", "pRelaysOwn", "pMsgFwds", "pMsgFwdsOwn", "pMsgFwdsRecv"),
    *("rcvServiceCount", "ntfServiceCount", "rcvServiceQueuesCount", "ntfServiceQueuesCount"),
]
"""Of the reference's `stats`, in its order."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRONG_PASSWORD_DELAY", 0.01)


@asynccontextmanager
async def a_port(world: World, directory: Path, daily_blocks: int = 20) -> AsyncIterator[int]:
    router = world.router
    collector = SmpCollector(router, world.listener, 5223)
    stats = SmpStatsLog(
        router.observer, router.services, lambda: collector.totals, directory / "stats.json"
    )
    passwords = Passwords(b"admins", b"users")
    control = SmpControlPort(
        router, world.listener, 5223, stats, collector, passwords, daily_blocks
    )
    port = await control.start(0)
    try:
        yield port
    finally:
        await control.close()


async def talk(port: int, *lines: str) -> list[str]:
    """What is answered, after the greeting and the role."""
    found = await control.talk(port, "SMP server control port", *lines)
    return [line for line in found if not line.startswith("Current role")]


async def test_roles(small_world: World, tmp_path: Path) -> None:
    of_users = ("stats", "sockets", "server-info", "status AAAA", "unblock AAAA")
    of_admins = ("clients", "threads", "socket-threads", "delete AAAA", "save")
    blocking = "block AAAA reason=spam"
    async with a_port(small_world, tmp_path) as port:
        assert await talk(port, *of_users, *of_admins, blocking) == ["AUTH"] * 11
        assert await talk(port, "auth wrong", *of_users, *of_admins, blocking) == ["AUTH"] * 11
        assert await talk(port, USER, *of_admins) == ["AUTH"] * 5
        assert "AUTH" not in await talk(port, USER, *of_users)
        assert "AUTH" not in await talk(port, ADMIN, *of_users, *of_admins)
        assert "cpu user seconds" in (await talk(port, "stats-rts"))[0]


async def test_block_status_unblock(world: World, tmp_path: Path) -> None:
    alice = await world.connect()
    queue = await create(alice)
    name = b64encode(queue.snd_id)
    async with a_port(world, tmp_path) as port:
        assert await talk(port, USER, f"status {name}") == ["status: active, queueMode: messaging"]
        assert await talk(port, USER, f'block {name} reason=spam,notice={{"ttl":60}}') == [
            'ok, queue blocked: blocked, reason=spam,notice={"ttl":60}'
        ]
        spam = BLOCKED(BlockingReason.SPAM, ClientNotice(60))
        assert await alice.push(queue.rcv_id) == smp.ERR(spam)
        assert await queue.send(alice, b"hello") == smp.ERR(spam)
        assert await talk(port, USER, f"block {name} reason=content", f"status {name}") == [
            "ok, already inactive: blocked, reason=content",
            "status: blocked, reason=content, queueMode: messaging",
        ]
        assert await talk(port, USER, f"unblock {name}", f"unblock {name}") == [
            "ok, queue unblocked, reason to block was: reason=content",
            "ok, queue was active",
        ]
        await alice.push(queue.rcv_id)
        assert await queue.send(alice, b"hello") == OK
        assert await queue.by_recipient(alice, smp.OFF()) == OK
        assert await talk(port, USER, f"unblock {name}") == ["error, queue is inactive"]


async def test_delete(world: World, tmp_path: Path) -> None:
    alice = await world.connect()
    queue = await create_notified(alice)
    for _ in range(2):
        assert await queue.send(alice, b"hello") == OK
    async with a_port(world, tmp_path) as port:
        name = b64encode(queue.snd_id)
        assert await talk(port, ADMIN, f"delete {name}", f"delete {name}") == [
            "ok, 2 messages deleted",
            "error: AUTH",
        ]
    assert await queue.send(alice, b"hello") == AUTH
    assert await world.router.store.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "line",
    ["delete !", "block AAAA spam", "block AAAA reason=envy", "status ***", "unblock 1"],
)
async def test_bad_arguments(small_world: World, tmp_path: Path, line: str) -> None:
    async with a_port(small_world, tmp_path) as port:
        [answer] = await talk(port, ADMIN, line)
    assert answer.startswith("error: ")
    assert "base64url" in answer


async def test_unknown_commands(small_world: World, tmp_path: Path) -> None:
    async with a_port(small_world, tmp_path) as port:
        for line in ("nonsense", "delete", "stats now", "block AAAA", "save it"):
            [answer] = await talk(port, ADMIN, line)
            assert answer.startswith("error: no such command; commands: ")


async def test_numbers(small_world: World, tmp_path: Path) -> None:
    async with a_port(small_world, tmp_path) as port:
        alice, ntf = await small_world.connect(), await small_world.connect()
        queue = await create_notified(alice, subscribe=True)
        assert await queue.nsub(ntf) == smp.SOK()
        assert await queue.send(alice, b"hello") == OK
        stats = dict(line.split(": ", 1) for line in await talk(port, USER, "stats"))
        assert list(stats) == LABELS
        assert stats["qCreated"] == stats["msgSent"] == stats["daily active queues"] == "1"
        assert stats["other SUB events (auth, duplicate, prohibited)"] == "(0,0,0)"
        assert stats["pRelays"].startswith("requests=0, successes=0, errorsConnect=0")
        sockets = await talk(port, USER, "sockets")
        assert sockets[:4] == ["Sockets for port 5223:", "accepted: 2", "closed: 0", "active: 2"]
        info = await talk(port, ADMIN, "server-info")
        assert {"Clients: 2", "SMP subscriptions: 1", "Ntf subscribed clients: 1"} <= {*info}
        assert "SMP subscriptions (via clients): 1" in info
        header, *clients = await talk(port, ADMIN, "clients")
        assert header.startswith("clientId,sessionId,connected,createdAt")
        assert sorted(client.split(",")[-1] for client in clients) == ["0", "1"]
        assert len(await talk(port, ADMIN, "socket-threads")) == 2
        assert (await talk(port, ADMIN, "threads"))[0].startswith("Threads: ")
        assert (await talk(port, ADMIN, "save"))[-1] == "server state saved!"
    assert (tmp_path / "stats.json").exists()


async def test_a_store_that_fails(
    small_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heliograph.db.errors import DatabaseError

    async def fail(*_: object) -> None:
        raise DatabaseError("no")

    monkeypatch.setattr(SmpStore, "load", fail)
    async with a_port(small_world, tmp_path) as port:
        assert await talk(port, ADMIN, "delete AAAA") == ["error: the store failed: no"]


async def test_daily_blocks(
    small_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await small_world.connect()
    names = [b64encode((await create(alice)).snd_id) for _ in range(4)]
    block = [f"block {name} reason=spam" for name in names]
    ok, again = (
        "ok, queue blocked: blocked, reason=spam",
        "ok, already inactive: blocked, reason=spam",
    )
    refused = "error: reached limit of 2 queues blocked daily"
    async with a_port(small_world, tmp_path, 2) as port:
        # One that is blocked already does not count.
        assert await talk(port, USER, block[0], block[0], block[1]) == [ok, again, ok]
        assert await talk(port, ADMIN, block[2], f"status {names[2]}") == [
            refused,
            "status: active, queueMode: messaging",
        ]
        tomorrow = time.time() + 86_400
        monkeypatch.setattr(smp_control, "time", SimpleNamespace(time=lambda: tomorrow))
        assert await talk(port, USER, *block[2:]) == [ok, ok]
    monkeypatch.undo()
    async with a_port(small_world, tmp_path, 0) as port:
        unblock = [f"unblock {name}" for name in names]
        assert (await talk(port, USER, *unblock, *block))[4:] == [ok] * 4
