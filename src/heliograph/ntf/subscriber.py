"""The connection to one messaging router: subscribes queues in batches, receives notifications.

It keeps trying: growing, jittered delays. Statuses in the store say what is true now; what arrives
is handed on in batches.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from heliograph.crypto.certificates import create_authority
from heliograph.ntf.backoff import Backoff
from heliograph.ntf.records import Incoming, QueueKey
from heliograph.ntf.subscriptions import Server
from heliograph.transport.client import Client, ClientConfig, ClientRequest
from heliograph.transport.errors import (
    AddressRefused,
    ClientError,
    Disconnected,
    HandshakeFailed,
    RequestRefused,
    RequestTimeout,
)
from heliograph.transport.handshake import ServiceCredentials
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import ErrorCode, encode_error
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.tokens import SubscriptionState, SubscriptionStatus

logger = logging.getLogger(__name__)

ACTIVE = SubscriptionStatus(SubscriptionState.ACTIVE)
REFUSED = b"the router's address is private"

Status = tuple[bytes, SubscriptionStatus, bool]


@dataclass(frozen=True, slots=True)
class SubscriberSettings:
    batch: int = 900
    page: int = 9_000
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, last=60.0))
    use_service: bool = False
    refused_delay: float = 3600.0
    """Between tries of a router whose addresses we do not connect to."""
    client: ClientConfig = field(default_factory=ClientConfig)


class Book(Protocol):
    """What a subscriber reads from and writes to the store."""

    async def page(
        self, server_id: int, after: bytes, limit: int, associated: bool | None
    ) -> list[QueueKey]: ...

    async def set_statuses(self, server_id: int, statuses: Sequence[Status]) -> None: ...

    async def set_state(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> None: ...

    async def replace_state(
        self,
        server_id: int,
        before: SubscriptionState,
        after: SubscriptionState,
        associated: bool | None = None,
    ) -> None: ...

    async def refuse(self, server_id: int, error: bytes) -> None: ...

    async def service(self, server_id: int) -> Server: ...

    async def set_service(self, server: Server) -> None: ...

    async def associated(self, server_id: int) -> tuple[int, bytes]: ...

    async def clear_association(self, server_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class SubscriberEvents:
    received: Callable[[int, list[Incoming]], None]
    connected: Callable[[int], None]
    disconnected: Callable[[int], None]
    repaired: Callable[[int], None]
    """Our associations differed from the router's, and were made anew."""


class SmpSubscriber:
    """Runs until cancelled."""

    def __init__(
        self,
        server: Server,
        address: ServerAddress,
        book: Book,
        events: SubscriberEvents,
        settings: SubscriberSettings,
    ) -> None:
        self.server = server
        self.address = address
        self.client: Client | None = None
        self.subscribed = 0
        self._book = book
        self._events = events
        self._settings = settings
        self._new: list[QueueKey] = []
        self._work = asyncio.Event()
        self._lost = asyncio.Event()
        self._incoming: list[Incoming] = []
        self._ended: list[bytes] = []
        self._deleted: list[bytes] = []

    def add(self, queue: QueueKey) -> None:
        """A new subscription; those made in one turn go out together."""
        self._new.append(queue)
        self._work.set()

    async def run(self) -> None:
        attempts = 0
        while True:
            try:
                await self._connect()
                attempts = 0
                await self._serve()
            except AddressRefused:
                logger.warning("a messaging router has only addresses that are not allowed")
                attempts = 0
                await self._wait_for_another_address()
            except ClientError as exc:
                logger.info("a messaging router cannot be reached: %s", type(exc).__name__)
            except Exception:
                logger.exception("a subscriber failed, and starts again")
            finally:
                await self._leave()
            attempts += 1
            # Jitter needs no secrecy.
            await asyncio.sleep(self._settings.backoff.delay(attempts, random.random()))  # noqa: S311

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()

    async def _connect(self) -> None:
        service = await self._service_credentials()
        self._lost.clear()
        self._work.clear()
        try:
            self.client = await Client.connect(
                self.address,
                self._settings.client,
                on_push=self._pushed,
                on_disconnect=lambda client, reason: self._disconnected(client),
                service=service,
            )
        except AddressRefused:
            self._new.clear()
            await self._book.refuse(self.server.server_id, REFUSED)
            raise
        self._events.connected(self.server.server_id)

    async def _wait_for_another_address(self) -> None:
        """Long, as only the operator or a name server can help; a new subscription asks again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.refused_delay):
                await self._work.wait()

    async def _serve(self) -> None:
        """Subscribe what the store has, then what is new, until the connection ends."""
        self._new.clear()  # they are in the store
        await self._resubscribe()
        while not self._lost.is_set():
            self._work.clear()
            await self._write_events()
            new, self._new = self._new, []
            if new:
                await self._subscribe(new)
            lost = asyncio.create_task(self._lost.wait())
            work = asyncio.create_task(self._work.wait())
            _, unfinished = await asyncio.wait((lost, work), return_when=asyncio.FIRST_COMPLETED)
            for task in unfinished:
                task.cancel()
        raise Disconnected("the connection ended")

    async def _leave(self) -> None:
        client, self.client = self.client, None
        if client is None:
            return
        self.subscribed = 0
        await client.close()
        await self._write_events()
        await self._book.replace_state(
            self.server.server_id, SubscriptionState.ACTIVE, SubscriptionState.INACTIVE
        )
        self._events.disconnected(self.server.server_id)

    # Subscribing.

    async def _resubscribe(self) -> None:
        client = self._connected()
        associated: bool | None = None
        if client.established.service is not None:
            if await self._subscribe_service(client):
                associated = False
            else:
                await self._repair()
        after = b""
        while True:
            page = await self._book.page(
                self.server.server_id, after, self._settings.page, associated
            )
            if not page:
                return
            await self._subscribe(page)
            after = page[-1].subscription_id

    async def _subscribe(self, queues: Sequence[QueueKey]) -> None:
        client = self._connected()
        for start in range(0, len(queues), self._settings.batch):
            batch = queues[start : start + self._settings.batch]
            answers = await client.request_many(
                ClientRequest(smp.NSUB(), queue.notifier_id, queue.notifier_key) for queue in batch
            )
            statuses = [
                (queue.notifier_id, status, isinstance(answer, smp.SOK) and bool(answer.service_id))
                for queue, answer in zip(batch, answers, strict=True)
                if (status := status_of(answer)) is not None
            ]
            await self._book.set_statuses(self.server.server_id, statuses)
            self.subscribed += sum(status is ACTIVE for _, status, _ in statuses)
            if any(isinstance(answer, Disconnected) for answer in answers):
                raise Disconnected("the connection ended")

    async def _subscribe_service(self, client: Client) -> bool:
        """NSUBS for all that is associated; False if the router's account differs from ours."""
        service = client.established.service
        if service is None:
            return False
        count, ids_hash = await self._book.associated(self.server.server_id)
        known = (await self._book.service(self.server.server_id)).service_id
        if known != service.service_id:
            await self._book.set_service(self.server._replace(service_id=service.service_id))
            if count:
                return False
        if not count:
            return True
        try:
            answer = await client.request(
                smp.NSUBS(count, ids_hash), service.service_id, service.key
            )
        except RequestRefused as exc:
            logger.warning("the service is unavailable: %s", exc)
            return False
        if not isinstance(answer, smp.SOKS) or answer.count != count:
            return False
        if client.established.session.version >= 19 and answer.ids_hash != ids_hash:
            return False
        await self._book.replace_state(
            self.server.server_id,
            SubscriptionState.INACTIVE,
            SubscriptionState.ACTIVE,
            associated=True,
        )
        self.subscribed += count
        return True

    async def _repair(self) -> None:
        """Subscribe every queue by itself again: that restores each association."""
        logger.warning("associations with a messaging router differ from its own: repairing")
        self._events.repaired(self.server.server_id)
        await self._book.clear_association(self.server.server_id)

    async def _service_credentials(self) -> ServiceCredentials | None:
        """One certificate per messaging router, so that they cannot tell that we are the same."""
        if not self._settings.use_service:
            return None
        self.server = server = await self._book.service(self.server.server_id)
        if server.service_chain is None or server.service_key is None:
            made = create_authority("heliograph", time.time())
            [chain] = made.chain
            server = server._replace(service_chain=chain, service_key=made.private_key)
            await self._book.set_service(server)
            self.server = server
            return ServiceCredentials(ServiceRole.NOTIFIER, made)
        from heliograph.crypto.certificates import Credentials

        credentials = Credentials((server.service_chain,), server.service_key)
        return ServiceCredentials(ServiceRole.NOTIFIER, credentials)

    def _connected(self) -> Client:
        if self.client is None or not self.client.is_connected:
            raise Disconnected("the connection ended")
        return self.client

    # Receiving.

    def _pushed(self, entity_id: bytes, message: Any) -> None:
        match message:
            case smp.NMSG():
                if not self._incoming:
                    asyncio.get_running_loop().call_soon(self._hand_on)
                self._incoming.append(Incoming(entity_id, message.nonce, message.meta, time.time()))
            case smp.END():
                self._ended.append(entity_id)
                self._work.set()
            case smp.DELD():
                self._deleted.append(entity_id)
                self._work.set()
            case smp.ENDS():
                # Another connection took our service over: start again, and let the later win.
                self._lost.set()
            case _:
                logger.debug("unexpected %s from a messaging router", type(message).__name__)

    def _hand_on(self) -> None:
        incoming, self._incoming = self._incoming, []
        self._events.received(self.server.server_id, incoming)

    async def _write_events(self) -> None:
        ended, self._ended = self._ended, []
        deleted, self._deleted = self._deleted, []
        server_id = self.server.server_id
        # An END of a session that is over says nothing: we are subscribing anew.
        if ended and self.client is not None:
            await self._book.set_state(server_id, ended, SubscriptionState.END)
        if deleted:
            await self._book.set_state(server_id, deleted, SubscriptionState.DELETED)

    def _disconnected(self, client: Client) -> None:
        if self.client is client or self.client is None:
            self._lost.set()


def status_of(answer: Any) -> SubscriptionStatus | None:
    """What an answer to NSUB says of the subscription; None if there was no answer."""
    match answer:
        case smp.SOK() | smp.OK():
            return ACTIVE
        case RequestRefused(error=ErrorCode.AUTH):
            return SubscriptionStatus(SubscriptionState.AUTH)
        case RequestRefused(error=ErrorCode.SERVICE):
            return SubscriptionStatus(SubscriptionState.SERVICE)
        case RequestRefused():
            return SubscriptionStatus(
                SubscriptionState.ERR, b"SMP error " + encode_error(answer.error)
            )
        case Disconnected() | RequestTimeout() | HandshakeFailed():
            return None
        case ClientError():
            return SubscriptionStatus(SubscriptionState.ERR, b"ResponseError")
    return SubscriptionStatus(SubscriptionState.ERR, b"UnexpectedResponse")
