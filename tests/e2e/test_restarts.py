"""Each process is killed at each stage of the pipeline, and the message is shown all the same.

Stages: the token is registered but not verified; a link is made but not joined; a message is sent
but not yet pushed; it is pushed but not yet shown.
"""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from heliograph.device.chats.body import Text
from heliograph.phone.phone import Phone
from heliograph.phone.sources import save_apns
from heliograph.wire.ntf.tokens import NotificationsMode, TokenStatus
from tests.e2e.support import TIMEOUT, WatchProcess, World
from tests.faults.stores import empty
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Story:
    """Alice, a phone in a process of its own, and Bob, who sends."""

    def __init__(self, world: World, victim: str) -> None:
        self.world = world
        self.victim = victim
        self.watch: WatchProcess
        self.alice: Phone
        self.bob: Phone

    async def kill(self) -> None:
        if self.victim == "phone":
            await self.watch.restart()
        else:
            await getattr(self.world, self.victim).restart()

    async def register(self) -> None:
        self.alice = await self.world.new_phone("alice")
        self.bob = await self.world.new_phone("bob")
        await save_apns(self.alice, self.world.apns.control)
        self.watch = WatchProcess(self.alice.directory)
        source = await self.world.source(self.alice)
        device = source.device
        async with self.alice.app() as app:
            status = await app.register(device, NotificationsMode.INSTANT)
        assert status is TokenStatus.REGISTERED
        await self.watch.start()
        await self.kill()

        async def is_active() -> bool:
            """The phone verifies by itself; a push that its provider lost is asked for again."""
            async with self.alice.app() as app:
                info = await app.agent.token_info()
                if info is not None and info.status is TokenStatus.ACTIVE:
                    return True
                if self.victim == "apns":
                    await app.register(device, NotificationsMode.INSTANT)
            await asyncio.sleep(0.5)
            return False

        await eventually(is_active)

    async def connect(self) -> None:
        async with self.alice.app() as app:
            link = await app.invite("bob")
        await self.kill()
        async with self.bob.app() as app:
            await app.accept(link, "alice")
        await self.watch.until("bob is connected!", "You can now send messages to bob")

    async def send(self, text: str) -> None:
        async with self.bob.app() as app:
            assert await app.send("alice", Text(text))

    async def recorded(self) -> int:
        url = f"{self.world.apns.control}/devices/{await self.alice.token()}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return len(await answer.json())


@pytest.mark.parametrize("victim", ["smp", "ntf", "apns", "phone"])
async def test_a_process_is_killed_at_every_stage(world: World, victim: str) -> None:
    story = Story(world, victim)
    try:
        await story.register()
        await story.connect()
        await story.send("one")
        await story.kill()
        if victim == "apns" and await is_lost(story, "one"):
            await story.send("once more")  # a provider that forgets is all that loses a push
            await story.watch.until("bob", "once more")

        await story.watch.kill()
        before = await story.recorded()
        await story.send("two")

        async def is_pushed() -> bool:
            return await story.recorded() > before

        await eventually(is_pushed)
        if victim == "phone":
            await story.watch.start()
        await story.kill()
        if victim != "phone":
            await story.watch.start()
        if victim == "apns":
            await story.send("three")
            shown = await story.watch.until("bob", "three")
        else:
            shown = await story.watch.until("bob", "two")
        assert shown["badge"] == await story.alice.shared.badge()
        assert story.alice.directory.joinpath("device.db").exists()
    finally:
        if hasattr(story, "watch"):
            await story.watch.kill()
        for phone in (getattr(story, "alice", None), getattr(story, "bob", None)):
            if phone is not None:
                await phone.close()


async def is_lost(story: Story, text: str) -> bool:
    try:
        async with asyncio.timeout(TIMEOUT / 6):
            await story.watch.until("bob", text)
    except TimeoutError:
        return True
    return False


async def test_the_notification_router_loses_its_data(world: World, tmp_path: Path) -> None:
    """The phone registers again, and subscriptions come back by themselves."""
    story = Story(world, "nobody")
    story.kill = nothing  # type: ignore[method-assign]
    try:
        await story.register()
        await story.connect()
        await world.ntf.kill()
        empty(world.ntf.store_url)
        await world.ntf.start()
        source = await world.source(story.alice)
        async with story.alice.app() as app:
            status = await app.register_and_verify(source, NotificationsMode.INSTANT, TIMEOUT)
            assert status is TokenStatus.ACTIVE
            [conn_id] = await app.agent.connections()
            assert await app.until_subscribed(conn_id)
        await source.close()
        await story.send("after the loss")
        await story.watch.until("bob", "after the loss")
    finally:
        await story.watch.kill()
        await story.alice.close()
        await story.bob.close()


async def nothing() -> None:
    pass
