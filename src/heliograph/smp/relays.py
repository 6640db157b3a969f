"""The proxy's sessions with destination routers: opened on demand, shared by all senders, bounded.

A session is found by the address that PRXY named, and by its session ID, which PKEY gives the
sender and PFWD repeats. A failed attempt is remembered, for longer each time, so that a dead
destination costs few attempts and not one for each sender.
"""

import asyncio
import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.forwarding import open_response, seal_forwarded
from heliograph.crypto.keys import box_key
from heliograph.runtime.backoff import Backoff
from heliograph.smp.settings import ProxySettings
from heliograph.tasks import ScopeClosed, SharedTasks
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import (
    AddressRefused,
    ClientError,
    Disconnected,
    HandshakeFailed,
    MalformedReply,
    RequestRefused,
    RequestTimeout,
    UnexpectedReply,
)
from heliograph.transport.handshake import proxy_versions
from heliograph.wire import smp
from heliograph.wire.addresses import HostKind, ServerAddress
from heliograph.wire.errors import (
    PROXY,
    BrokerError,
    ErrorCode,
    ErrorType,
    ProxyProtocolError,
    TransportError,
    WireError,
    encode_error,
)
from heliograph.wire.smp.forwarding import ForwardedTransmission
from heliograph.wire.versions import SMP_SENDING_PROXY, SMP_VERSIONS, VersionRange

CORR_ID_SIZE = 24
OFFERED = VersionRange(SMP_SENDING_PROXY, 17)
"""The versions that PKEY may name: not the newest, so that early adopters do not stand out."""

MAX_FAILURES = 10_000
CONNECTING_DIVISOR = 4
"""Sessions that may be opened at a time: `max_connections` divided by this."""
MAX_UNASKED = 1_000
"""Messages that answer no request, or too late, after which a destination is disconnected."""
FIRST_RETRY = 1.0
"""Seconds: a router that restarts is tried again soon, and later with growing pauses."""

NETWORK = PROXY(BrokerError("NETWORK"))
TIMEOUT = PROXY(BrokerError("TIMEOUT"))
HOST = PROXY(BrokerError("HOST"))
VERSION = PROXY(BrokerError("TRANSPORT", TransportError.VERSION))
NO_SERVER_KEY = PROXY(BrokerError("TRANSPORT", TransportError.NO_AUTH))


class RelayError(Exception):
    """A session or an answer of the destination that could not be had; `error` answers it."""

    def __init__(self, error: ErrorType) -> None:
        super().__init__(encode_error(error).decode("utf-8", "replace"))
        self.error = error


@dataclass(slots=True, eq=False)
class Relay:
    """A session with a destination router."""

    address: ServerAddress
    client: Client
    pkey: smp.PKEY
    key: bytes = field(repr=False)
    in_flight: int = 0
    answered_at: float = 0.0


class _Failure(NamedTuple):
    """Failed attempts to connect to a destination, and when the next one may be made."""

    retry_at: float
    attempts: int
    error: ErrorType


class Relays:
    def __init__(self, settings: ProxySettings) -> None:
        self.settings = settings
        self._config = ClientConfig(
            connect_timeout=settings.connect_timeout,
            handshake_timeout=settings.connect_timeout + 5,  # the other one ends it
            request_timeout=settings.request_timeout,
            socks=settings.socks,
            allow=settings.allow,
            is_proxy=True,
        )
        self._by_address: dict[ServerAddress, Relay] = {}
        self._by_session: dict[bytes, Relay] = {}
        self._connecting = SharedTasks[ServerAddress, Relay]("connect to a destination")
        self._max_connecting = max(settings.max_connections // CONNECTING_DIVISOR, 1)
        self._failures: dict[ServerAddress, _Failure] = {}
        self._backoff = Backoff(min(FIRST_RETRY, settings.retry_after), settings.retry_after, 0)
        self._waiting: dict[asyncio.Timeout, None] = {}
        """Forwarded commands that wait for their answers, the oldest first."""

    def __len__(self) -> int:
        """Return how many sessions there are."""
        return len(self._by_address)

    @property
    def in_flight(self) -> int:
        """Return how many forwarded commands wait for their answers."""
        return len(self._waiting)

    def connected(self, address: ServerAddress) -> Relay | None:
        return self._by_address.get(address)

    def find(self, session_id: bytes) -> Relay | None:
        return self._by_session.get(session_id)

    def has_room(self, relay: Relay) -> bool:
        """Return whether another command may be forwarded there now."""
        return relay.in_flight < self.settings.max_in_flight_each

    async def connect(self, address: ServerAddress) -> Relay:
        """Return a session with the destination. Raises `RelayError`."""
        relay = self._by_address.get(address)
        if relay is not None:
            return relay
        failure = self._failures.get(address)
        if failure is not None and time.monotonic() < failure.retry_at:
            raise RelayError(failure.error)
        if address not in self._connecting and len(self._connecting) >= self._max_connecting:
            raise RelayError(NETWORK)
        try:
            return await self._connecting.run(address, partial(self._connect, address))
        except ScopeClosed:
            raise RelayError(NETWORK) from None

    async def forward(self, relay: Relay, corr_id: bytes, command: smp.PFWD) -> smp.PRES:
        """Forward a command and return the answer. Raises `RelayError`.

        Of too many in flight, the oldest times out: an answer takes a moment, so its destination
        is the most suspicious.
        """
        if len(self._waiting) >= self.settings.max_in_flight:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        waiting = asyncio.timeout(None)
        self._waiting[waiting] = None
        relay.in_flight += 1
        try:
            async with waiting:
                answer = await self._forward(relay, corr_id, command)
        except TimeoutError:
            raise RelayError(TIMEOUT) from None
        finally:
            self._waiting.pop(waiting, None)
            relay.in_flight -= 1
        relay.answered_at = time.monotonic()
        return answer

    async def close(self) -> None:
        await self._connecting.close()
        for relay in tuple(self._by_address.values()):
            await relay.client.close()

    async def _forward(self, relay: Relay, corr_id: bytes, command: smp.PFWD) -> smp.PRES:
        forwarded = ForwardedTransmission(
            corr_id, command.version, command.key, command.transmission
        )
        nonce = os.urandom(CORR_ID_SIZE)
        try:
            sealed = seal_forwarded(relay.key, nonce, forwarded)
            rres = await relay.client.request(smp.RFWD(sealed), corr_id=nonce)
            response = open_response(relay.key, nonce, rres.response)
        except CryptoError:
            raise RelayError(ErrorCode.CRYPTO) from None
        except WireError as exc:
            raise RelayError(_response_error(exc.error)) from None
        except ClientError as exc:
            raise RelayError(_request_error(exc)) from None
        return smp.PRES(response.response)

    async def _connect(self, address: ServerAddress) -> Relay:
        try:
            relay = await self._open(address)
        except RelayError as exc:
            self._failed(address, exc.error)
            raise
        self._failures.pop(address, None)
        if len(self._by_address) >= self.settings.max_connections:
            self._close_one()
        self._by_address[address] = relay
        self._by_session[relay.pkey.session_id] = relay
        if not relay.client.is_connected:
            self._drop(relay)
        return relay

    def _failed(self, address: ServerAddress, error: ErrorType) -> None:
        while len(self._failures) >= MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        former = self._failures.pop(address, None)
        attempts = 1 if former is None else former.attempts + 1
        retry_at = time.monotonic() + self._backoff.delay(attempts, 0)
        self._failures[address] = _Failure(retry_at, attempts, error)

    async def _open(self, address: ServerAddress) -> Relay:
        onion_only = all(host.kind is HostKind.ONION for host in address.hosts)
        if onion_only and self.settings.socks is None:
            raise RelayError(HOST)
        client: Client | None = None
        unasked = 0

        def pushed(*_: object) -> None:
            nonlocal unasked
            unasked += 1
            if unasked > MAX_UNASKED and client is not None:
                client.abort()

        def lost(lost_client: Client, _: Exception | None) -> None:
            self._disconnected(lost_client)
            if unasked > MAX_UNASKED:
                self._failed(address, NETWORK)

        try:
            client = await Client.connect(address, self._config, on_push=pushed, on_disconnect=lost)
        except ClientError as exc:
            raise RelayError(_connect_error(exc)) from None
        try:
            return _relay(address, client)
        except RelayError:
            await client.close()
            raise

    def _close_one(self) -> None:
        """Close the session whose destination has not answered for the longest time."""
        silent = min(self._by_address.values(), key=lambda relay: relay.answered_at)
        self._drop(silent)
        silent.client.abort()

    def _disconnected(self, client: Client) -> None:
        for relay in tuple(self._by_address.values()):
            if relay.client is client:
                self._drop(relay)

    def _drop(self, relay: Relay) -> None:
        if self._by_address.get(relay.address) is relay:
            del self._by_address[relay.address]
        self._by_session.pop(relay.pkey.session_id, None)


def _relay(address: ServerAddress, client: Client) -> Relay:
    """Return the session that a handshake established. Raises `RelayError`."""
    established = client.established
    theirs = established.peer_versions
    ours = proxy_versions(SMP_VERSIONS, theirs)
    versions = VersionRange(
        max(OFFERED.min, ours.min, theirs.min), min(OFFERED.max, ours.max, theirs.max)
    )
    if versions.min > versions.max or established.session.version < SMP_SENDING_PROXY:
        raise RelayError(VERSION)
    auth, peer_key = established.peer_auth, established.peer_key
    if auth is None or peer_key is None or established.session_private is None:
        raise RelayError(NO_SERVER_KEY)
    pkey = smp.PKEY(established.session.session_id, versions, auth)
    key = box_key(peer_key, established.session_private)
    return Relay(address, client, pkey, key, answered_at=time.monotonic())


def _connect_error(error: ClientError) -> ErrorType:
    match error:
        case AddressRefused():
            return HOST
        case HandshakeFailed() if error.error is not TransportError.HANDSHAKE_IDENTITY:
            return PROXY(BrokerError("TRANSPORT", error.error))
    return NETWORK  # also for another certificate than pinned, with which TLS fails


def _request_error(error: ClientError) -> ErrorType:
    match error:
        case RequestRefused():
            return PROXY(ProxyProtocolError(error.error))
        case MalformedReply():
            return _response_error(error.error)
        case UnexpectedReply():
            return PROXY(BrokerError("UNEXPECTED", str(error)))
        case RequestTimeout():
            return TIMEOUT
        case Disconnected():
            return NETWORK
    return PROXY(BrokerError("TRANSPORT", TransportError.LARGE_MSG))


def _response_error(error: ErrorType) -> ErrorType:
    return PROXY(BrokerError("RESPONSE", encode_error(error).decode("utf-8", "replace")))
