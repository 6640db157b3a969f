"""Phones over real routers in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from heliograph.phone import sources as phone_sources
from heliograph.phone.phone import Phone
from heliograph.phone.push import ApnsSource
from heliograph.phone.watch import Screen, Watch
from heliograph.wire.ntf.tokens import NotificationsMode as Mode, TokenStatus
from tests.agent.fast import settings
from tests.agent.notifications.settings import SETTINGS
from tests.agent.notifications.support import AgentWorld
from tests.agent.support import Router

SOON = 0.1


class PhoneWorld:
    """Routers, and phones that know them."""

    def __init__(self, routers: AgentWorld, smp: Router) -> None:
        self.routers = routers
        self.smp = smp
        self.phones: list[Phone] = []

    @property
    def control_url(self) -> str:
        return self.routers.ntf.apns.simulator.control_url

    async def phone(self, name: str, url: str | None = None) -> Phone:
        phone = await Phone.create(
            self.routers.directory / name,
            name,
            [str(self.smp.address)],
            [str(self.routers.ntf.address)],
            url=url,
            settings=settings(ntf=SETTINGS),
        )
        self.phones.append(phone)
        await phone_sources.save_apns(phone, self.control_url)
        return phone

    async def registered(self, name: str, url: str | None = None) -> Phone:
        phone = await self.phone(name, url)
        async with self.pushes(phone) as source, phone.app() as app:
            assert await app.register_and_verify(source, Mode.INSTANT) is TokenStatus.ACTIVE
        return phone

    @contextlib.asynccontextmanager
    async def pushes(self, phone: Phone) -> AsyncIterator[ApnsSource]:
        source = ApnsSource(self.control_url, await phone.token())
        try:
            yield source
        finally:
            await source.close()

    @contextlib.asynccontextmanager
    async def watched(self, phone: Phone) -> AsyncIterator[Screen]:
        """In a pocket, the app suspended."""
        screen = Screen()
        app = phone.foreground(screen)
        await app.launch()
        async with self.pushes(phone) as source:
            task = asyncio.create_task(Watch(phone, screen, app, SOON).run(source))
            try:
                yield screen
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await app.close()
