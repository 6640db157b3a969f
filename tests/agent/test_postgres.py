"""Agents whose stores are at a PostgreSQL server that is killed, restarted or unreachable."""

import asyncio
from pathlib import Path

import pytest

from heliograph.agent.agent import Agent
from heliograph.agent.errors import AgentError
from heliograph.agent.store import AgentStore
from tests.agent.places import place_of, stores_in_postgres
from tests.agent.support import SETTINGS, Router, connect, users
from tests.db.postgres import shared_postgres


async def test_a_server_that_is_killed_under_load(tmp_path: Path, router: Router) -> None:
    """Every message that was accepted arrives once, in order."""
    server, sent = shared_postgres(), [b"%d" % number for number in range(80)]
    with stores_in_postgres():
        async with users(tmp_path, "alice", "bob") as [alice, bob]:
            at_alice, _ = await connect(alice, bob, router.address)

            async def send() -> None:
                for body in sent:
                    await alice.agent.send(at_alice, body)

            sending = asyncio.create_task(send())
            received = await bob.receive(10)
            for kill in (server.kill, server.stop, server.kill):
                await asyncio.to_thread(kill)
                await asyncio.to_thread(server.start)
                received += await bob.receive(5)
            await sending
            received += await bob.receive(len(sent) - len(received))
            assert received == sent
            assert (await bob.agent.connection((await bob.agent.connections())[0])).unhandled == 0


async def test_locks_of_a_lost_connection_are_taken_again(tmp_path: Path) -> None:
    server = shared_postgres()
    with stores_in_postgres():
        store = await AgentStore.open(place_of(tmp_path))
        async with store.locks.hold("a"):
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
        async with store.locks.hold("a", within=10.0):
            pass
        await store.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://alice:hunter2@127.0.0.1:1/none", "refused"),
        ("postgresql://alice:hun ter2@[::1/none", "cannot be understood"),
        ("mysql://alice:hunter2@localhost/none", "a store URL is"),
    ],
)
async def test_a_wrong_url_is_an_error_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(AgentError, match=reason) as caught:
        await Agent.open(url, settings=SETTINGS)
    assert "hun" not in str(caught.value)
