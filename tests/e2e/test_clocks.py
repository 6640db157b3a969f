"""Clocks that are wrong, and clocks that jump: each process has its own, and nothing is lost."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.agent.agent import AgentSettings
from tests.e2e.support import WatchProcess, World, a_world, device
from tests.faults.processes import skewed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DAY, HOUR = 86_400, 3600
FAR = (AgentSettings().remember_days + 10) * DAY
"""Longer than a phone remembers messages, and than it waits for anything."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Routers whose certificates are old, as they are in life, so that slow clocks accept them."""
    async with a_world(tmp_path, skewed(-2 * FAR)) as world:
        yield world


async def two_phones(world: World, tmp_path: Path) -> tuple[Path, Path]:
    """Alice, notified that Bob joined, and Bob."""
    alice, bob = tmp_path / "alice", tmp_path / "bob"
    for directory in (alice, bob):
        routers = ("--smp", world.smp_address, "--ntf", world.ntf_address)
        await device("init", directory, "--name", directory.name, *routers)
    await device("register", alice, "--apns", world.apns.control)
    link = (await device("connect", alice, "--name", "bob")).strip()
    await device("connect", bob, link, "--name", "alice")
    await shows(alice, 0, "bob is connected!", "You can now send messages to bob")
    return alice, bob


async def shows(phone: Path, ahead: int, title: str, body: str) -> None:
    """A phone whose clock is so many seconds ahead."""
    watch = WatchProcess(phone, command=skewed(ahead))
    await watch.start()
    try:
        await watch.until(title, body)
        assert await watch.stop() == 0
    finally:
        await watch.kill()


async def badge(phone: Path) -> int:
    shown: int = json.loads(await device("status", phone, "--json"))["badge"]
    return shown


async def test_a_phone_whose_clock_jumps(world: World, tmp_path: Path) -> None:
    """Far ahead, far back, and right again, each in a process of its own."""
    alice, bob = await two_phones(world, tmp_path)
    for number, ahead in enumerate((FAR, -FAR, 0), 1):
        text = f"at {ahead}"
        assert await device("send", bob, "alice", text) == "Sent.\n"
        await shows(alice, ahead, "bob", text)
        assert await badge(alice) == number, "each is counted once"


async def test_a_sender_whose_clock_jumps(world: World, tmp_path: Path) -> None:
    """What was kept while a router was down leaves, whatever the clock says by then."""
    alice, bob = await two_phones(world, tmp_path)
    await world.smp.kill()
    kept = await device("send", bob, "alice", "kept", command=skewed(FAR))
    assert kept.startswith("Stored: ")
    await world.smp.start()
    assert await device("send", bob, "alice", "and sent", command=skewed(-FAR)) == "Sent.\n"
    await shows(alice, 0, "bob", "and sent")
    assert await badge(alice) == 2


async def test_a_messaging_router_whose_clock_jumps(world: World, tmp_path: Path) -> None:
    """Its times order messages, and a later message may seem to be the older one."""
    alice, bob = await two_phones(world, tmp_path)
    count = 0
    for seconds in (-HOUR, 0):
        await world.smp.kill()
        world.smp.command = skewed(seconds)
        await world.smp.start()
        count += 1
        text = f"the router is at {seconds}, message {count}"
        assert await device("send", bob, "alice", text) == "Sent.\n"
        await shows(alice, 0, "bob", text)
    assert await badge(alice) == count, "each is counted once"
