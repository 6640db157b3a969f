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

from heliograph.crypto.certificates import Credentials, create_authority
from heliograph.db.errors import DatabaseError
from heliograph.ntf.backoff import Backoff
from heliograph.ntf.chronicle import Account
from heliograph.ntf.connections import abort, gone, hold, limit_received
from heliograph.ntf.inbox import Inbox
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
from heliograph.transport.handshake import Service, ServiceCredentials
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import ErrorCode, TransportError, encode_error
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.tokens import SubscriptionState, SubscriptionStatus
from heliograph.wire.versions import SMP_SERVICE_HASH

logger = logging.getLogger(__name__)

ACTIVE = SubscriptionStatus(SubscriptionState.ACTIVE)
PARTS = 4
REFUSED = b"the router's address is private"

Status = tuple[bytes, SubscriptionStatus, bool]
Told = tuple[bytes, SubscriptionState]
"""A subscription ID, and its state now."""

_SERVICE_REFUSED = (TransportError.HANDSHAKE_BAD_SERVICE, TransportError.HANDSHAKE_BAD_AUTH)


@dataclass(frozen=True, slots=True)
class SubscriberSettings:
    """`stable_after` is how long a connection lasts before the next delay is the first again."""

    batch: int = 900
    page: int = 9_000
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, last=60.0))
    stable_after: float = 2.0
    retry_errors: float = 60.0
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

    async def set_ended(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> list[bytes]: ...

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
    received: Callable[[int, list[Incoming]], asyncio.Future[None]]
    """Its result is there once they are durable."""
    connected: Callable[[int], None]
    disconnected: Callable[[int], None]
    repaired: Callable[[int, Account | None, Account | None], None]
    """Our associations, the last, differed from the router's, if it told, and were made anew."""
    subscribed: Callable[[int, Account, Account], None] = lambda server, found, expected: None
    """After connecting: what the router confirmed, and what we asked for."""
    statuses: Callable[[int, list[Told]], None] = lambda server, told: None
    """What was said of new subscriptions, and of those that are not active."""


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
        self._untold: set[bytes] = set()
        """New subscriptions of which nobody was told what became of them."""
        self._work = asyncio.Event()
        self._lost = False
        self._inbox = Inbox(self._hold, self._let_go)
        self._without_service = False
        self._incoming: list[Incoming] = []
        self._ended: list[bytes] = []
        self._deleted: list[bytes] = []

    def add(self, queue: QueueKey) -> None:
        """A new subscription; those made in one turn go out together."""
        self._new.append(queue)
        self._untold.add(queue.subscription_id)
        self._work.set()

    @property
    def unstored(self) -> int:
        """How many notifications arrived and are not durable yet."""
        return self._inbox.waiting

    async def run(self) -> None:
        attempts = 0
        while True:
            began = None
            try:
                await self._inbox.all_stored()
                await self._connect()
                began = time.monotonic()
                await self._serve()
            except AddressRefused:
                logger.warning("a messaging router has only addresses that are not allowed")
                attempts = 0
                await self._wait_for_another_address()
            except ClientError as exc:
                logger.info("a messaging router cannot be reached: %s", type(exc).__name__)
            except DatabaseError as exc:
                logger.error("subscriptions cannot be read or written, trying again: %s", exc)
            except Exception:
                logger.exception("a subscriber failed, and starts again")
            finally:
                await self._leave()
            lasted = 0.0 if began is None else time.monotonic() - began
            attempts = 1 if lasted >= self._settings.stable_after else attempts + 1
            # Jitter needs no secrecy.
            await asyncio.sleep(self._settings.backoff.delay(attempts, random.random()))  # noqa: S311

    async def _connect(self) -> None:
        service = await self._service_credentials()
        self._lost = False
        self._work.clear()
        try:
            self.client = await Client.connect(
                self.address,
                self._settings.client,
                on_push=self._pushed,
                on_disconnect=lambda client, reason: self._disconnected(),
                service=service,
            )
        except AddressRefused:
            self._new.clear()
            await self._book.refuse(self.server.server_id, REFUSED)
            self._tell([(untold, SubscriptionState.ERR) for untold in self._untold])
            raise
        except HandshakeFailed as exc:
            if service is not None and exc.error in _SERVICE_REFUSED:
                self._without_service = True  # only the next connection
                await self._give_up_service()
            raise
        self._hold(self._inbox.is_held)
        limit_received(self.client)
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
        while not self._lost:
            self._work.clear()
            await self._write_events()
            new, self._new = self._new, []
            if new:
                await self._subscribe(new)
            if not self._lost:
                await self._work.wait()
        raise Disconnected("the connection ended")

    async def _leave(self) -> None:
        client, self.client = self.client, None
        if client is None:
            return
        self.subscribed = 0
        abort(client)
        await gone(client)
        try:
            await self._write_events()
            await self._book.replace_state(
                self.server.server_id, SubscriptionState.ACTIVE, SubscriptionState.INACTIVE
            )
        except DatabaseError as exc:
            logger.error("what became of subscriptions cannot be stored: %s", exc)
        self._ended.clear()
        self._events.disconnected(self.server.server_id)

    # Subscribing.

    async def _resubscribe(self) -> None:
        client = self._connected()
        associated: bool | None = None
        if client.established.service is not None:
            await self._subscribe_service(client)
            associated = False
        after = b""
        expected, before = 0, self.subscribed
        while True:
            page = await self._book.page(
                self.server.server_id, after, self._settings.page, associated
            )
            if not page:
                break
            expected += len(page)
            await self._subscribe(page)
            after = page[-1].subscription_id
        if expected or not before:
            found = Account(self.subscribed - before)
            self._events.subscribed(self.server.server_id, found, Account(expected))

    async def _subscribe(self, queues: Sequence[QueueKey]) -> None:
        """A batch is under way in parts: while the router works on some, the next is made."""
        parts = min(PARTS, self._settings.batch)
        slots, size = asyncio.Semaphore(parts), self._settings.batch // parts
        try:
            async with asyncio.TaskGroup() as group:
                for start in range(0, len(queues), size):
                    await slots.acquire()
                    part = self._subscribe_part(queues[start : start + size])
                    group.create_task(part).add_done_callback(lambda _: slots.release())
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from exc

    async def _subscribe_part(self, part: Sequence[QueueKey]) -> None:
        answers = await self._connected().request_many(
            ClientRequest(smp.NSUB(), queue.notifier_id, queue.notifier_key) for queue in part
        )
        statuses: list[Status] = []
        told: list[Told] = []
        failed: list[QueueKey] = []
        for queue, answer in zip(part, answers, strict=True):
            status = status_of(answer)
            if status is None:
                continue
            associated = isinstance(answer, smp.SOK) and bool(answer.service_id)
            statuses.append((queue.notifier_id, status, associated))
            if status is not ACTIVE or queue.subscription_id in self._untold:
                told.append((queue.subscription_id, status.state))
            if status.state is SubscriptionState.ERR:
                failed.append(queue)
        if failed:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.retry_errors, self._retry, failed)
        await self._book.set_statuses(self.server.server_id, statuses)
        self._tell(told)
        self.subscribed += sum(status is ACTIVE for _, status, _ in statuses)
        if len(statuses) < len(part):
            raise Disconnected("the connection ended, or the router does not answer")

    def _tell(self, told: list[Told]) -> None:
        if told:
            self._untold.difference_update([subscription_id for subscription_id, _ in told])
            self._events.statuses(self.server.server_id, told)

    def _retry(self, queues: list[QueueKey]) -> None:
        """What a router refused for reasons of its own; if reconnected since, that is harmless."""
        self._new += queues
        self._work.set()

    async def _subscribe_service(self, client: Client) -> None:
        """NSUBS for all that is associated. If the router's account differs, begin anew.

        With other credentials every queue is subscribed, and so associated, by itself.
        """
        service = client.established.service
        expected = Account(*await self._book.associated(self.server.server_id))
        found = None if service is None else await self._account(client, service, expected)
        if found != expected:
            logger.warning("associations with a messaging router differ from its own: repairing")
            await self._give_up_service(found, expected)
            raise Disconnected("to begin anew")
        if expected.count:
            await self._book.replace_state(
                self.server.server_id,
                SubscriptionState.INACTIVE,
                SubscriptionState.ACTIVE,
                associated=True,
            )
            self.subscribed += expected.count
            self._events.subscribed(self.server.server_id, expected, expected)

    async def _account(self, client: Client, service: Service, expected: Account) -> Account | None:
        """The router's, after it was told ours; None if it has none, or tells none."""
        known = (await self._book.service(self.server.server_id)).service_id
        if known != service.service_id:
            self.server = self.server._replace(service_id=service.service_id)
            await self._book.set_service(self.server)
            return None if expected.count else expected
        if not expected.count:
            return expected
        nsubs = smp.NSUBS(expected.count, expected.ids_hash or b"")
        try:
            answer = await client.request(nsubs, service.service_id, service.key)
        except RequestRefused as exc:
            logger.warning("the service is unavailable: %s", exc)
            return None
        if not isinstance(answer, smp.SOKS):
            return None
        hashed = client.established.session.version >= SMP_SERVICE_HASH
        return Account(answer.count, answer.ids_hash if hashed else expected.ids_hash)

    async def _give_up_service(
        self, found: Account | None = None, expected: Account | None = None
    ) -> None:
        """No queue is associated any more; later connections have other credentials."""
        await self._book.clear_association(self.server.server_id)
        self._events.repaired(self.server.server_id, found, expected)

    async def _service_credentials(self) -> ServiceCredentials | None:
        """One certificate per messaging router, so that they cannot tell that we are the same."""
        if not self._settings.use_service or self._without_service:
            self._without_service = False
            return None
        self.server = server = await self._book.service(self.server.server_id)
        if server.service_chain is None or server.service_key is None:
            made = create_authority("heliograph", time.time())
            [chain] = made.chain
            self.server = server._replace(service_chain=chain, service_key=made.private_key)
            await self._book.set_service(self.server)
            return ServiceCredentials(ServiceRole.NOTIFIER, made)
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
                self._disconnected()
            case _:
                logger.debug("unexpected %s from a messaging router", type(message).__name__)

    def _hand_on(self) -> None:
        incoming, self._incoming = self._incoming, []
        self._inbox.put(self._events.received(self.server.server_id, incoming), len(incoming))

    def _hold(self, held: bool) -> None:
        if self.client is not None:
            hold(self.client, held)

    def _let_go(self) -> None:
        """So that the router keeps what has not been stored."""
        if self.client is not None:
            logger.warning("the store stands still: leaving a messaging router until it works")
            abort(self.client)

    async def _write_events(self) -> None:
        """Of this session: an END of one that is over would say nothing."""
        said = {SubscriptionState.END: self._ended, SubscriptionState.DELETED: self._deleted}
        for state, ids in said.items():
            if written := ids[:]:
                ended = await self._book.set_ended(self.server.server_id, written, state)
                self._tell([(ended_id, state) for ended_id in ended])
                del ids[: len(written)]
                self.subscribed = max(self.subscribed - len(written), 0)

    def _disconnected(self) -> None:
        self._lost = True
        self._work.set()


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
