"""A pool of connections to routers: one for each router and purpose.

A connection is opened on first use and closed after an idle time. A connection that is kept is
reopened with exponential backoff and jitter; a request for any other connection fails at once until
the backoff of its last failure has passed.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from heliograph.runtime.backoff import Backoff
from heliograph.tasks import ScopeClosed, SharedTasks, TaskScope
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import (
    ClientError,
    ConnectFailed,
    HandshakeFailed,
    RequestRefused,
)
from heliograph.transport.protocols import Response
from heliograph.wire.addresses import Scheme, ServerAddress
from heliograph.wire.errors import STORE, ErrorCode
from heliograph.wire.versions import VersionRange

_TEMPORARY = (ErrorCode.QUOTA, ErrorCode.INTERNAL, ErrorCode.EXPIRED)


class ClientPurpose(Enum):
    """The use of a connection: routers serve SUB and GET of a queue only on different ones."""

    COMMANDS = "commands"
    GET = "get"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Times in seconds. `stable_after` is how long a connection lasts before the backoff is reset.

    The versions of `config` are those of messaging routers.
    """

    config: ClientConfig = field(default_factory=ClientConfig)
    ntf_versions: VersionRange | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, last=60.0))
    idle_after: float = 120.0
    stable_after: float = 10.0


Key = tuple[Scheme, bytes, ClientPurpose]
ReceivedHandler = Callable[[Client, bytes, Response], None]
"""Called with a message that a messaging router pushed: the client, the entity ID, the message."""

ConnectedHandler = Callable[[Client], None]
DisconnectedHandler = Callable[[Client], None]


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, RequestRefused):
        return error.error in _TEMPORARY or isinstance(error.error, STORE)
    if isinstance(error, HandshakeFailed):
        return True  # the router is being replaced, or another server answered
    return isinstance(error, ClientError)


class ClientPool:
    """A pool. Handlers are called only for command connections to messaging routers."""

    def __init__(
        self,
        settings: ClientSettings | None = None,
        *,
        on_received: ReceivedHandler | None = None,
        on_connected: ConnectedHandler | None = None,
        on_disconnected: DisconnectedHandler | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        self._entries: dict[Key, _Entry] = {}
        self._on_received = on_received
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def smp(
        self,
        address: ServerAddress,
        purpose: ClientPurpose = ClientPurpose.COMMANDS,
        *,
        at_once: bool = False,
    ) -> Client:
        """Return a connection to a messaging router; `at_once` ignores a backoff."""
        return await self._entry(address, purpose).get(at_once=at_once)

    async def ntf(self, address: ServerAddress, *, at_once: bool = False) -> Client:
        """Return a connection to a notification router; `at_once` ignores a backoff."""
        return await self._entry(address, ClientPurpose.COMMANDS).get(at_once=at_once)

    def connected(self, address: ServerAddress) -> Client | None:
        """Return the open connection for commands, or None."""
        entry = self._entries.get((address.scheme, address.fingerprint, ClientPurpose.COMMANDS))
        return entry.live if entry is not None else None

    def keep(self, address: ServerAddress, *, wanted: bool = True) -> None:
        """Keep the connection for commands open and reconnect when it is lost; or stop doing so."""
        self._entry(address, ClientPurpose.COMMANDS).keep(wanted=wanted)

    def moved(self, address: ServerAddress) -> None:
        """Set a router's new address. Open connections stay open."""
        for purpose in ClientPurpose:
            entry = self._entries.get((address.scheme, address.fingerprint, purpose))
            if entry is not None and entry.address != address:
                entry.move(address)

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*[entry.close() for entry in self._entries.values()])

    def _entry(self, address: ServerAddress, purpose: ClientPurpose) -> "_Entry":
        if self._closed:
            raise ConnectFailed("the agent is closed")
        key = address.scheme, address.fingerprint, purpose
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(self, address, purpose)
        return entry


class _Entry:
    """The connection to one router for one purpose.

    Its attributes are one state machine: connected, connecting, backing off, or idle.
    """

    def __init__(self, pool: ClientPool, address: ServerAddress, purpose: ClientPurpose) -> None:
        self.address = address
        self._purpose = purpose
        self._pool = pool
        self._settings = pool._settings
        self._loop = pool._loop
        self._client: Client | None = None
        self._since = 0.0
        self._used_at = 0.0
        self._failures = 0
        self._next_at = 0.0
        self._failure: ClientError | None = None
        self._wanted = False
        self._connecting = SharedTasks[None, Client]("connect to a router")
        self._keeper: asyncio.Task[None] | None = None
        self._keepers = TaskScope()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing = TaskScope()

    @property
    def live(self) -> Client | None:
        client = self._client
        return client if client is not None and client.is_connected else None

    async def get(self, *, at_once: bool) -> Client:
        self._used_at = self._loop.time()
        client = self.live
        if client is not None:
            return client
        if not self._connecting:
            wait = self._next_at - self._loop.time()
            if wait > 0 and not at_once and self._failure is not None:
                raise ConnectFailed(f"{self._failure} (next attempt in {wait:.0f} s)")
        try:
            return await self._connecting.run(None, self._connect)
        except ScopeClosed:
            raise ConnectFailed("the agent is closed") from None

    def move(self, address: ServerAddress) -> None:
        self.address = address
        self._failures, self._next_at = 0, 0.0
        if self._keeper is not None:
            self._keeper.cancel()  # its current backoff may be long
            self._reconnect()

    def keep(self, *, wanted: bool) -> None:
        self._wanted = wanted
        if wanted and self._keeper is None and self.live is None:
            self._reconnect()

    async def close(self) -> None:
        self._wanted = False
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._keepers.close()
        await self._connecting.close()
        await self._closing.wait()
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        try:
            client = await self._open()
        except Exception as exc:
            self._failed(exc)
            raise
        self._connected(client)
        return client

    async def _open(self) -> Client:
        received = self._pool._on_received if self._has_handlers else None
        connected: list[Client] = []

        def on_push(entity_id: bytes, message: Response) -> None:
            if received is not None and connected:
                received(connected[0], entity_id, message)

        config = self._settings.config
        if self.address.scheme is Scheme.NTF:
            config = replace(config, versions=self._settings.ntf_versions)
        client = await Client.connect(
            self.address,
            config,
            on_push=on_push,
            on_disconnect=self._lost,
        )
        connected.append(client)
        return client

    def _failed(self, error: Exception) -> None:
        self._back_off()
        self._failure = error if isinstance(error, ClientError) else ConnectFailed("failed")

    def _back_off(self) -> None:
        self._failures += 1
        delay = self._settings.backoff.delay(self._failures, random.random())  # noqa: S311
        self._next_at = self._loop.time() + delay

    def _connected(self, client: Client) -> None:
        if self._pool._closed:
            self._close(client)  # closed meanwhile: nothing else would close this one
            return
        self._client, self._since, self._failure = client, self._loop.time(), None
        self._watch_idleness(self._settings.idle_after)
        if not client.is_connected:
            self._lost(client, None)  # lost before the handlers were called
        elif self._has_handlers and self._pool._on_connected is not None:
            self._pool._on_connected(client)

    @property
    def _has_handlers(self) -> bool:
        return self.address.scheme is Scheme.SMP and self._purpose is ClientPurpose.COMMANDS

    def _lost(self, client: Client, reason: Exception | None) -> None:
        if client is not self._client:
            return
        self._client = None
        if self._loop.time() - self._since >= self._settings.stable_after:
            self._failures = 0
        self._back_off()
        if self._has_handlers and self._pool._on_disconnected is not None:
            self._pool._on_disconnected(client)
        if self._wanted and not self._pool._closed and self._keeper is None:
            self._reconnect()

    def _reconnect(self) -> None:
        self._keeper = self._keepers.spawn(self._persist(), name="reconnect to a router")

    async def _persist(self) -> None:
        """Connect, with backoff, until it succeeds."""
        try:
            while self._wanted and self.live is None:
                await asyncio.sleep(max(self._next_at - self._loop.time(), 0.0))
                with contextlib.suppress(ClientError):
                    await self.get(at_once=True)
        finally:
            if self._keeper is asyncio.current_task():
                self._keeper = None

    def _watch_idleness(self, wait: float) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._loop.call_later(wait, self._close_if_idle)

    def _close_if_idle(self) -> None:
        client = self._client
        if client is None:
            return
        wait = self._settings.idle_after - (self._loop.time() - self._used_at)
        if self._wanted or wait > 0:
            self._watch_idleness(max(wait, self._settings.idle_after / 2))
            return
        self._client = None
        self._close(client)

    def _close(self, client: Client) -> None:
        self._closing.spawn(client.close(), name="agent disconnect")
