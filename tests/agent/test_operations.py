"""Connections over real routers, through every version and every restart."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.agent.agent import Agent
from heliograph.agent.errors import (
    AgentError,
    BadInvitation,
    Prohibited,
    RouterError,
    UnknownConnection,
    WrongPassphrase,
)
from heliograph.agent.events import ConnectionReady, MessageSent, SendFailed
from heliograph.smp.settings import Rules
from tests.agent.places import BOTH_STORES, place_of, stored_bytes
from tests.agent.support import SETTINGS, TIMEOUT, Router, User, a_router, connect, settings, users
from tests.smp.support import with_settings
from tests.waiting import eventually

pytestmark = BOTH_STORES


async def test_both_sides_send(router: Router, alice: User, bob: User) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    number = await alice.agent.send(at_alice, b"hello")
    await bob.agent.send(at_bob, b"hi")
    assert await bob.receive() == [b"hello"]
    assert await alice.receive() == [b"hi"]
    assert ConnectionReady(at_alice) in alice.events
    assert (await alice.has(MessageSent)) == MessageSent(at_alice, number)
    info = await alice.agent.connection(at_alice)
    assert (info.is_ready, info.to_send, info.unhandled) == (True, 0, 0)
    assert info.routers == (router.address,)


@pytest.mark.parametrize("version", range(6, 20))
async def test_every_version(tmp_path: Path, router: Router, version: int) -> None:
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        at_alice, at_bob = await connect(alice, bob, router.address)
        await bob.agent.send(at_bob, b"to alice")
        await alice.agent.send(at_alice, b"to bob")
        assert await alice.receive() == [b"to alice"]
        assert await bob.receive() == [b"to bob"]


@pytest.mark.parametrize(("inviter", "joiner"), [(6, 19), (19, 6), (8, 9), (9, 8)])
async def test_versions_mixed(tmp_path: Path, router: Router, inviter: int, joiner: int) -> None:
    async with (
        users(tmp_path, "alice", settings=settings(inviter)) as [alice],
        users(tmp_path, "bob", settings=settings(joiner)) as [bob],
    ):
        at_alice, at_bob = await connect(alice, bob, router.address)
        await bob.agent.send(at_bob, b"to alice")
        await alice.agent.send(at_alice, b"to bob")
        assert await alice.receive() == [b"to alice"]
        assert await bob.receive() == [b"to bob"]


async def test_each_at_its_own_router(
    router: Router, other_router: Router, alice: User, bob: User
) -> None:
    at_alice, invitation = await alice.agent.create_connection(str(router.address))
    at_bob = await bob.agent.join_connection(str(invitation), str(other_router.address))
    await bob.agent.send(at_bob, b"early")
    await alice.agent.send(at_alice, b"early too")
    assert await alice.receive() == [b"early"]
    assert await bob.receive() == [b"early too"]
    assert (await bob.agent.connection(at_bob)).routers == (other_router.address,)


@pytest.mark.parametrize("version", [8, 19])
async def test_what_is_sent_before_anybody_joined_arrives(
    tmp_path: Path, router: Router, version: int
) -> None:
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        at_alice, invitation = await alice.agent.create_connection(router.address)
        for number in range(5):
            await alice.agent.send(at_alice, b"%d" % number)
        await alice.restart()
        await alice.agent.subscribe()
        await bob.agent.join_connection(invitation)
        assert await bob.receive(5) == [b"0", b"1", b"2", b"3", b"4"]


async def restart_all(alice: User, bob: User, router: Router) -> None:
    """Everybody, in the order that leaves the most undone."""
    await bob.restart()
    await router.restart()
    await alice.restart()
    await bob.agent.subscribe()
    await alice.agent.subscribe()


@pytest.mark.parametrize("version", [8, 19])
@pytest.mark.parametrize("stage", ["created", "joined", "ready", "sent", "received"])
async def test_restarts(tmp_path: Path, router: Router, version: int, stage: str) -> None:
    """Of both agents and the router at every stage."""
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        at_alice, invitation = await alice.agent.create_connection(router.address)
        if stage == "created":
            await restart_all(alice, bob, router)
        at_bob = await bob.agent.join_connection(invitation)
        if stage == "joined":
            await restart_all(alice, bob, router)
        if stage in ("ready", "sent", "received"):
            async with asyncio.timeout(TIMEOUT):
                await alice.agent.wait_ready(at_alice)
        if stage == "ready":
            await restart_all(alice, bob, router)
        await alice.agent.send(at_alice, b"to bob")
        await bob.agent.send(at_bob, b"to alice")
        if stage == "sent":
            await restart_all(alice, bob, router)
        if stage == "received":
            await bob.receive(ack=False)
            await alice.receive(ack=False)
            await restart_all(alice, bob, router)
        assert await bob.receive() == [b"to bob"]
        assert await alice.receive() == [b"to alice"]
        assert (await alice.agent.connection(at_alice)).to_send == 0


async def test_a_send_outlives_the_agent_and_a_dead_router(tmp_path: Path, router: Router) -> None:
    async with users(tmp_path, "alice", "bob") as [alice, bob]:
        at_alice, _ = await connect(alice, bob, router.address)
        await router.stop()
        sent = [b"%d" % number for number in range(20)]
        for body in sent:
            await alice.agent.send(at_alice, body)
        await alice.restart()
        assert (await alice.agent.connection(at_alice)).to_send == 20
        await router.start()
        assert await bob.receive(20) == sent


async def test_a_full_queue_is_tried_again(tmp_path: Path) -> None:
    limits = with_settings(rules=Rules(quota=3))
    async with (
        a_router(tmp_path, settings=limits) as router,
        users(tmp_path, "alice", "bob") as [alice, bob],
    ):
        at_alice, _ = await connect(alice, bob, router.address)
        await bob.close()
        sent = [b"%d" % number for number in range(12)]
        for body in sent:
            await alice.agent.send(at_alice, body)

        async def is_full() -> bool:
            # One place may still be taken by what made the connection.
            return (await alice.agent.connection(at_alice)).to_send <= len(sent) - 2

        await eventually(is_full)
        assert (await alice.agent.connection(at_alice)).to_send >= len(sent) - 3
        await bob.open()
        await bob.agent.subscribe()
        assert await bob.receive(12) == sent
        assert (await alice.agent.connection(at_alice)).failed == ()


async def test_a_deleted_queue_is_reported(router: Router, alice: User, bob: User) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    await bob.agent.delete_connection(at_bob)

    async def is_gone() -> bool:
        return not await bob.agent.store.read(lambda tx: tx.query("SELECT 1 FROM rcv_queues"))

    await eventually(is_gone)
    number = await alice.agent.send(at_alice, b"is anybody there?")
    assert (await alice.has(SendFailed)) == SendFailed(at_alice, number, "AUTH")
    info = await alice.agent.connection(at_alice)
    assert (info.to_send, info.failed) == (0, ((number, "AUTH"),))


async def test_an_invitation_is_for_one(tmp_path: Path, router: Router, alice: User) -> None:
    _, invitation = await alice.agent.create_connection(router.address)
    async with users(tmp_path, "bob", "eve") as [bob, eve]:
        at_bob = await bob.agent.join_connection(invitation)
        async with asyncio.timeout(TIMEOUT):
            await bob.agent.wait_ready(at_bob)
        at_eve = await eve.agent.join_connection(invitation)
        await eve.agent.send(at_eve, b"me too")
        assert (await eve.has(SendFailed)).error == "AUTH"
        await bob.agent.send(at_bob, b"from bob")
        assert await alice.receive() == [b"from bob"]


async def test_several_connections_and_routers(
    router: Router, other_router: Router, alice: User, bob: User
) -> None:
    pairs = [
        await connect(alice, bob, address) for address in (router.address, other_router.address) * 3
    ]
    await alice.restart()
    await bob.restart()
    for user in (alice, bob):
        assert set((await user.agent.subscribe()).values()) == {None}
    for number, (at_alice, _) in enumerate(pairs):
        await alice.agent.send(at_alice, b"%d" % number)
    found = await bob.receive_messages(6)
    assert {m.conn_id: m.body for m in found} == {
        at_bob: b"%d" % number for number, (_, at_bob) in enumerate(pairs)
    }


async def test_a_router_moves(tmp_path: Path, alice: User, bob: User) -> None:
    async with a_router(tmp_path) as router:
        at_alice, at_bob = await connect(alice, bob, router.address)
        await router.stop()
        await alice.agent.send(at_alice, b"before it moved")
        await router.start(port=0)
        for user in (alice, bob):
            await user.agent.move_router(router.address)
        assert await bob.receive() == [b"before it moved"]
        await bob.restart()
        await bob.agent.send(at_bob, b"after a restart too")
        assert await alice.receive() == [b"after a restart too"]


async def test_several_hosts(tmp_path: Path, router: Router, alice: User, bob: User) -> None:
    """The first that can be reached is used."""
    text = str(router.address).replace("127.0.0.1", "127.0.0.2,127.0.0.1")
    at_alice, invitation = await alice.agent.create_connection(text)
    await bob.agent.join_connection(str(invitation))
    await alice.agent.send(at_alice, b"found")
    assert await bob.receive() == [b"found"]


async def test_keys_and_bodies_are_not_in_an_encrypted_store(
    tmp_path: Path, router: Router, bob: User
) -> None:
    alice = await User(tmp_path / "alice", SETTINGS, "a passphrase").open()
    at_alice, at_bob = await connect(alice, bob, router.address)
    await bob.agent.send(at_bob, b"a secret for alice")
    await alice.receive(ack=False)
    queues = alice.agent.store
    rows = await queues.read(lambda tx: tx.query("SELECT recipient_key FROM rcv_queues"))
    sealed = bytes(rows[0][0])
    key = alice.agent.store.vault.open(sealed)
    await router.stop()
    await alice.agent.send(at_alice, b"a secret for bob")
    await alice.close()
    data = stored_bytes(tmp_path / "alice")
    assert sealed in data
    for secret in (b"a secret for alice", b"a secret for bob", key, key[16:]):
        assert secret not in data
    with pytest.raises(WrongPassphrase):
        await Agent.open(place_of(tmp_path / "alice"), passphrase="another", settings=SETTINGS)
    await alice.open()
    await router.start()
    assert await bob.receive() == [b"a secret for bob"]
    assert await alice.receive() == [b"a secret for alice"]
    await alice.close()


async def test_no_router(router: Router, alice: User) -> None:
    await router.stop()
    with pytest.raises(RouterError) as failure:
        await alice.agent.create_connection(router.address)
    assert failure.value.temporary


async def test_another_router_in_its_place(
    router: Router, other_router: Router, alice: User
) -> None:
    text = str(router.address).replace(router.address.port, other_router.address.port)
    with pytest.raises(RouterError, match="IDENTITY") as failure:
        await alice.agent.create_connection(text)
    assert not failure.value.temporary


async def test_bad_input(router: Router, alice: User) -> None:
    agent = alice.agent
    with pytest.raises(AgentError, match="smp://fingerprint@host"):
        await agent.create_connection("example.com")
    with pytest.raises(Prohibited, match="smp:// address"):
        await agent.create_connection(str(router.address).replace("smp:", "ntf:"))
    with pytest.raises(BadInvitation):
        await agent.join_connection("hello")
    for call in (
        agent.connection("none"),
        agent.delete_connection("none"),
        agent.get_message("none"),
        agent.rotate_queue("none", router.address),
        agent.enable_notifications("none", True),
        agent.wait_ready("none"),
    ):
        with pytest.raises(UnknownConnection):
            await call
    with pytest.raises(UnknownConnection):
        await agent.send("none", b"")
    assert isinstance((await agent.subscribe(["none"]))["none"], UnknownConnection)


async def test_a_closed_agent_says_so(router: Router, bob: User) -> None:
    await bob.close()
    with pytest.raises(AgentError, match="closed"):
        await bob.agent.connections()
    await bob.close()


async def test_a_router_with_a_password(tmp_path: Path, alice: User, bob: User) -> None:
    """It is needed to create a queue, sent to nobody, and not stored."""
    limits = with_settings(rules=Rules(password=b"open-sesame"))
    async with a_router(tmp_path, settings=limits) as router:
        with pytest.raises(RouterError, match="may need a password"):
            await alice.agent.create_connection(router.address)
        address = replace(router.address, password="open-sesame")
        at_alice, invitation = await alice.agent.create_connection(address)
        assert "sesame" not in str(invitation)
        at_bob = await bob.agent.join_connection(str(invitation), address)
        await bob.agent.send(at_bob, b"hello")
        assert await alice.receive() == [b"hello"]
        await alice.agent.delete_connection(at_alice)
    for user in (alice, bob):
        await user.restart()
        assert b"sesame" not in stored_bytes(user.directory)
