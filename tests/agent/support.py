"""Helpers of the agent's tests: agents over stores on disk, and real routers on real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from heliograph.agent.agent import Agent, AgentSettings
from heliograph.agent.events import AgentEvent
from heliograph.agent.records import ReceivedMessage
from heliograph.smp.router import SmpRouter
from heliograph.smp.settings import SmpSettings
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress, decode_address, decode_host
from heliograph.wire.errors import WireError
from tests.agent.fast import CHEAP as CHEAP, FAST as FAST, settings as settings
from tests.agent.places import place_of
from tests.ports import steady_port
from tests.smp.support import AT_ONCE, identity
from tests.waiting import until

TIMEOUT = 20.0


class Router:
    """A messaging router that keeps its port and its store while it is down."""

    def __init__(self, directory: Path, name: str = "smp", settings: SmpSettings = AT_ONCE) -> None:
        self._url = f"sqlite:///{directory / f'{name}.db'}"
        self._identity = identity(f"SMP {name} CA")
        self._settings = settings
        self._port = 0
        self._router: SmpRouter | None = None
        self._listener: Listener | None = None

    @property
    def address(self) -> ServerAddress:
        host = decode_host("127.0.0.1")
        return ServerAddress(Scheme.SMP, (host,), str(self._port), self._identity.fingerprint)

    @property
    def router(self) -> SmpRouter:
        assert self._router is not None
        return self._router

    @property
    def connections(self) -> int:
        """How many are open."""
        return 0 if self._listener is None else len(self._listener.connections)

    async def start(self, *, port: int | None = None) -> None:
        self._router = await SmpRouter.start(self._url, self._settings)
        self._listener = Listener(SMP, self._identity, self._router)
        wanted = self._port if port is None else port
        self._port = await self._listener.start("127.0.0.1", wanted or steady_port())

    async def stop(self) -> None:
        listener, self._listener = self._listener, None
        router, self._router = self._router, None
        if listener is not None:
            await listener.close()
        if router is not None:
            await router.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()


@contextlib.asynccontextmanager
async def a_router(
    directory: Path, name: str = "smp", settings: SmpSettings = AT_ONCE
) -> AsyncIterator[Router]:
    router = Router(directory, name, settings)
    await router.start()
    try:
        yield router
    finally:
        await router.stop()


class User:
    """Somebody with an agent, that can be closed and opened again over the same store."""

    agent: Agent

    def __init__(
        self,
        directory: Path,
        settings: AgentSettings | None = None,
        passphrase: str | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings or SETTINGS
        self.passphrase = passphrase
        self.events: list[AgentEvent] = []

    async def open(self) -> "User":
        self.agent = await Agent.open(
            place_of(self.directory),
            passphrase=self.passphrase,
            settings=self.settings,
            on_event=self.events.append,
        )
        return self

    async def close(self) -> None:
        await self.agent.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def receive(self, count: int = 1, *, ack: bool = True) -> list[bytes]:
        """The bodies of the next messages, which are acknowledged."""
        return [message.body for message in await self.receive_messages(count, ack=ack)]

    async def receive_messages(self, count: int = 1, *, ack: bool = True) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        async with asyncio.timeout(TIMEOUT):
            async with contextlib.aclosing(self.agent.messages()) as incoming:
                async for message in incoming:
                    found.append(message)
                    if ack:
                        await self.agent.ack(message.conn_id, message.message_id)
                    if len(found) == count:
                        break
        return found

    async def has(self, event: type[Any]) -> Any:
        """The first event of a kind."""
        await until(lambda: any(isinstance(item, event) for item in self.events))
        return next(item for item in self.events if isinstance(item, event))


SETTINGS = settings()


@contextlib.asynccontextmanager
async def users(
    directory: Path, *names: str, settings: AgentSettings | None = None
) -> AsyncIterator[list[User]]:
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for name in names:
            user = await User(directory / name, settings).open()
            stack.push_async_callback(user.close)
            found.append(user)
        yield found


async def connect(alice: User, bob: User, address: ServerAddress) -> tuple[str, str]:
    """Until both can send; gives the ID that each has for the connection."""
    at_alice, invitation = await alice.agent.create_connection(address)
    at_bob = await bob.agent.join_connection(str(invitation))
    async with asyncio.timeout(TIMEOUT):
        await alice.agent.wait_ready(at_alice)
        await bob.agent.wait_ready(at_bob)
    return at_alice, at_bob


def has_text(address: ServerAddress) -> bool:
    """Whether a text stands for it, as not for every address that fits in bytes."""
    try:
        return decode_address(str(address)) == address
    except WireError:
        return False
