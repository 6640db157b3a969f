"""An app and its extension: two real processes over one store."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.agent.errors import UnknownConnection
from tests.agent.places import BOTH_STORES, place_of
from tests.agent.support import SETTINGS, TIMEOUT, Router, User, connect
from tests.waiting import eventually

pytestmark = BOTH_STORES

ROOT = Path(__file__).parents[2]


class Extension:
    """The other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            line = await self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def tell(self, do: str, **values: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")

    async def ask(self, do: str, **values: Any) -> Any:
        self.tell(do, **values)
        return await self.answer()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def end(self) -> int:
        """In order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(TIMEOUT):
            return await self._process.wait()


@contextlib.asynccontextmanager
async def an_extension(directory: Path, *arguments: str) -> AsyncIterator[Extension]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.agent.extension",
        str(place_of(directory)),
        *arguments,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    extension = Extension(process)
    try:
        yield extension
    finally:
        await extension.kill()


async def test_both_make_the_store_at_once(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        others = [
            await stack.enter_async_context(an_extension(tmp_path / "app", "secret"))
            for _ in range(3)
        ]
        app = await User(tmp_path / "app", SETTINGS, "secret").open()
        for other in others:
            assert await other.answer() == "opened"
            assert await other.ask("connections") == []
        for other in others:
            assert await other.end() == 0
        await app.close()


async def test_both_send(router: Router, alice: User, bob: User) -> None:
    """On the same connection; everything arrives once, each one's in order."""
    at_alice, _ = await connect(alice, bob, router.address)
    async with an_extension(alice.directory) as extension:
        assert await extension.answer() == "opened"
        assert await extension.ask("connections") == [at_alice]
        extension.tell("send", conn_id=at_alice, count=60)
        for number in range(60):
            await alice.agent.send(at_alice, b"app %d" % number)
        bodies = await bob.receive(120)
        numbers = await extension.answer()
        assert len(set(numbers)) == 60
        assert await extension.end() == 0
    for name in (b"app", b"extension"):
        assert [body for body in bodies if body.startswith(name)] == [
            b"%s %d" % (name, number) for number in range(60)
        ]


async def test_both_receive(router: Router, alice: User, bob: User) -> None:
    """One is subscribed and the other fetches: each message is stored, and handled, once."""
    at_alice, at_bob = await connect(alice, bob, router.address)
    async with an_extension(bob.directory) as extension:
        assert await extension.answer() == "opened"
        extension.tell("fetch", conn_id=at_bob, count=40)
        for number in range(40):
            await alice.agent.send(at_alice, b"%d" % number)
        assert await extension.answer() == [str(number) for number in range(40)]
        assert await extension.end() == 0
    assert (await bob.agent.connection(at_bob)).unhandled == 0
    rows = await bob.agent.store.read(
        lambda tx: tx.query("SELECT COUNT(*) FROM received WHERE number > 2")
    )
    assert rows[0][0] >= 39
    # The app's subscription went on beside it.
    await alice.agent.send(at_alice, b"to the app")
    assert await bob.receive() == [b"to the app"]


async def test_one_hears_what_the_other_received(router: Router, alice: User, bob: User) -> None:
    at_alice, _ = await connect(alice, bob, router.address)
    async with an_extension(bob.directory) as extension:
        assert await extension.answer() == "opened"
        assert await extension.ask("subscribe") == []
        await alice.agent.send(at_alice, b"received by the extension")
        assert await bob.receive() == [b"received by the extension"]
        assert await extension.end() == 0


async def test_one_is_killed(router: Router, alice: User, bob: User) -> None:
    """What it had accepted is sent by the other, and nothing of its stays locked."""
    at_alice, _ = await connect(alice, bob, router.address)
    await router.stop()
    async with an_extension(alice.directory) as extension:
        assert await extension.answer() == "opened"
        assert len(await extension.ask("send", conn_id=at_alice, count=30)) == 30
        await extension.kill()
    await alice.agent.send(at_alice, b"extension 30")
    await router.start()
    assert await bob.receive(31) == [b"extension %d" % number for number in range(31)]


async def test_one_is_killed_while_it_sends(router: Router, alice: User, bob: User) -> None:
    at_alice, _ = await connect(alice, bob, router.address)
    async with an_extension(alice.directory) as extension:
        assert await extension.answer() == "opened"
        extension.tell("send", conn_id=at_alice, count=10_000)
        bodies = await bob.receive(20)
        await extension.kill()
    await alice.agent.send(at_alice, b"last")
    while bodies[-1] != b"last":
        bodies += await bob.receive(1)
    assert bodies[:-1] == [b"extension %d" % number for number in range(len(bodies) - 1)]


async def test_one_deletes_what_the_other_uses(router: Router, alice: User, bob: User) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    async with an_extension(bob.directory) as extension:
        assert await extension.answer() == "opened"
        assert await extension.ask("delete", conn_id=at_bob) is None
        with pytest.raises(UnknownConnection):
            await bob.agent.send(at_bob, b"too late")
        assert await bob.agent.connections() == []

        async def is_gone() -> bool:
            return not await bob.agent.store.read(lambda tx: tx.query("SELECT 1 FROM rcv_queues"))

        await eventually(is_gone)
        assert await extension.end() == 0
    await alice.agent.send(at_alice, b"nobody")
    await eventually(lambda: _has_failed(alice, at_alice))


async def _has_failed(user: User, conn_id: str) -> bool:
    return bool((await user.agent.connection(conn_id)).failed)
