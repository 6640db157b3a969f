"""Routes of a sender's commands: a direct connection, or a session through a proxy."""

import os
import random
import time
from typing import Protocol, TypeVar

from heliograph.agent.clients import ClientPool
from heliograph.agent.routing.forwarding import ForwardingSession, NoCommonVersion
from heliograph.agent.routing.modes import (
    RoutingSettings,
    choose_proxy,
    is_protected,
    may_fall_back,
    needs_proxy,
)
from heliograph.crypto.keys import generate_key_pair
from heliograph.transport.client import CORR_ID_SIZE, Client, ClientConfig
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.transport.protocols import SMP
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import PROXY, BrokerError, ErrorType, ProxyFailure, TransportError
from heliograph.wire.keys import Algorithm
from heliograph.wire.table import Command

R = TypeVar("R")

_NO_VERSION = PROXY(BrokerError("TRANSPORT", TransportError.VERSION))


class ProxyFailed(ClientError):
    """The proxy could not forward the command. It is retried, because the queue may still exist."""


class Route(Protocol):
    """A way to a messaging router for commands of senders."""

    @property
    def version(self) -> int: ...

    async def request(self, command: Command[R], entity_id: bytes, key: bytes | None) -> R:
        """Send a command. Raises `RequestRefused` if the router refused, or `ClientError`."""


class DirectRoute:
    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def version(self) -> int:
        return self._client.established.session.version

    async def request(self, command: Command[R], entity_id: bytes, key: bytes | None) -> R:
        return await self._client.request(command, entity_id, key)


class ProxiedRoute:
    def __init__(self, routes: "Routes", destination: ServerAddress, through: "_Session") -> None:
        self._routes = routes
        self._destination = destination
        self._through = through

    @property
    def version(self) -> int:
        return self._through.session.session.version

    async def request(self, command: Command[R], entity_id: bytes, key: bytes | None) -> R:
        try:
            return await self._request(command, entity_id, key)
        except _SessionEnded:
            self._through = await self._routes.renew(self._destination, self._through)
        try:
            return await self._request(command, entity_id, key)
        except _SessionEnded:
            raise ProxyFailed("the proxy lost its session with the destination again") from None

    async def _request(self, command: Command[R], entity_id: bytes, key: bytes | None) -> R:
        session, client = self._through.session, self._through.client
        corr_id, keys = os.urandom(CORR_ID_SIZE), generate_key_pair(Algorithm.X25519)
        forwarded = session.seal(corr_id, keys, command, entity_id, key)
        session_id = session.session.session_id
        try:
            answer = await client.request(forwarded, session_id, corr_id=corr_id)
        except RequestRefused as exc:
            if exc.error == PROXY(ProxyFailure.NO_SESSION):
                raise _SessionEnded from None
            raise ProxyFailed(f"the proxy answered {exc}") from exc
        return session.open(corr_id, keys, command, entity_id, answer)


class _SessionEnded(Exception):
    """The proxy no longer has the session."""


class _Session:
    """A session of a proxy, on our connection to the proxy."""

    def __init__(self, proxy: ServerAddress, client: Client, session: ForwardingSession) -> None:
        self.proxy = proxy
        self.client = client
        self.session = session


class Routes:
    """Routes to messaging routers. Sessions last as long as the connection to their proxy."""

    def __init__(
        self, clients: ClientPool, settings: RoutingSettings, config: ClientConfig
    ) -> None:
        self._clients = clients
        self._settings = settings
        self._config = config
        self._sessions: dict[bytes, _Session] = {}

    @property
    def own_routers(self) -> tuple[ServerAddress, ...]:
        return self._settings.servers

    async def to(self, destination: ServerAddress) -> Route:
        """Return the route to a router. Raises `ClientError`."""
        protected = is_protected(destination, self._config.socks)
        if not needs_proxy(self._settings, destination, protected=protected):
            return await self._direct(destination)
        kept = self._sessions.get(destination.fingerprint)
        if kept is not None and kept.client.is_connected:
            return ProxiedRoute(self, destination, kept)
        proxy = choose_proxy(self._settings, destination, random.random())  # noqa: S311
        try:
            return ProxiedRoute(self, destination, await self._open(proxy, destination))
        except _Refused as exc:
            if may_fall_back(self._settings, exc.error, protected=protected):
                return await self._direct(destination)
            raise ProxyFailed(str(exc)) from exc

    async def renew(self, destination: ServerAddress, ended: _Session) -> _Session:
        """Open a session again, through the same proxy."""
        kept = self._sessions.get(destination.fingerprint)
        if kept is not None and kept is not ended and kept.client.is_connected:
            return kept
        try:
            return await self._open(ended.proxy, destination)
        except _Refused as exc:
            raise ProxyFailed(str(exc)) from exc

    async def _direct(self, destination: ServerAddress) -> DirectRoute:
        return DirectRoute(await self._clients.smp(destination))

    async def _open(self, proxy: ServerAddress, destination: ServerAddress) -> _Session:
        self._sessions.pop(destination.fingerprint, None)
        client = await self._clients.smp(proxy)
        password = None if proxy.password is None else proxy.password.encode()
        versions = self._config.versions or SMP.versions
        try:
            answer = await client.request(smp.PRXY(destination.without_password(), password))
            session = ForwardingSession.check(
                answer, destination.fingerprint, versions, time.time()
            )
        except RequestRefused as exc:
            raise _Refused(f"the proxy answered {exc}", exc.error) from exc
        except NoCommonVersion as exc:
            raise _Refused(str(exc), _NO_VERSION) from exc
        opened = self._sessions[destination.fingerprint] = _Session(proxy, client, session)
        return opened


class _Refused(Exception):
    """A proxy refused to open a session."""

    def __init__(self, text: str, error: ErrorType) -> None:
        super().__init__(text)
        self.error = error
