"""Anybody with Internet access."""

import os

from heliograph.crypto.keys import generate_key_pair
from heliograph.transport.client import Client
from heliograph.wire import ntf
from heliograph.wire.keys import Algorithm
from tests.ntf.support import AUTH, NtfWorld
from tests.threats.support import a_tap

GUESSES = 20


async def test_cannot_register_a_token_of_another_device(small_world: NtfWorld) -> None:
    """The code goes to the device. Without it nothing is subscribed, and the owner keeps all."""
    world = small_world
    owner = await world.registered()
    attacker = await world.phone(owner.device)
    assert isinstance(await attacker.tnew(), ntf.IDTKN)
    for _ in range(GUESSES):
        assert await attacker.tvfy(os.urandom(32)) == AUTH
    queue = await world.queue()
    assert await attacker.snew(queue) == AUTH
    await owner.subscribe(queue)
    world.apns.skip(owner.device)
    await world.send(queue)
    await owner.notified_of(queue)
    assert (await owner.tchk()).value == "ACTIVE"


async def test_cannot_use_another_tokens_keys(small_world: NtfWorld) -> None:
    owner = await small_world.registered()
    attacker = await small_world.phone()
    for command in (ntf.TCHK(), ntf.TDEL(), ntf.TCRN(0), ntf.TVFY(b"x"), ntf.TRPL(attacker.device)):
        assert await attacker.ask(command, owner.token_id) == AUTH


async def test_cannot_enumerate(small_world: NtfWorld) -> None:
    """What exists and what does not are refused alike, to the byte; IDs are 24 random bytes."""
    world = small_world
    owner = await world.registered()
    subscription = await owner.subscribe(await world.queue())
    known = (owner.token_id, subscription)
    assert all(len(entity_id) == 24 for entity_id in known)
    async with a_tap(world.address) as (address, heard):
        client = await Client.connect(address)
        world.clients.append(client)
        attacker = await world.phone(client=client)
        await attacker.ask(ntf.PING())  # so that all of the handshake has passed
        views = set()
        for algorithm in (Algorithm.X25519, Algorithm.ED25519):
            key = generate_key_pair(algorithm).private
            for command in (ntf.TCHK(), ntf.SCHK(), ntf.TDEL(), ntf.SDEL()):
                for entity_id in (*known, os.urandom(24)):
                    before = heard.volume
                    assert await attacker.ask(command, entity_id, key) == AUTH
                    views.add(heard.since(before))
    assert len(views) == 1
