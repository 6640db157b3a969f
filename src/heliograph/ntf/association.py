"""Our service at one messaging router: its certificate, and NSUBS for the queues it has.

If the router's account of them differs from ours, both begin anew.
"""

import logging
import time
from collections.abc import Callable

from heliograph.crypto.certificates import Credentials, create_authority
from heliograph.ntf.book import Book
from heliograph.ntf.chronicle import Account
from heliograph.ntf.subscriptions import Server
from heliograph.transport.client import Client
from heliograph.transport.errors import Disconnected, RequestRefused
from heliograph.transport.handshake import Service, ServiceCredentials
from heliograph.wire import smp
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.tokens import SubscriptionState
from heliograph.wire.versions import SMP_SERVICE_HASH

logger = logging.getLogger(__name__)

Repaired = Callable[[int, Account | None, Account | None], None]


class Association:
    def __init__(self, server: Server, book: Book, repaired: Repaired, *, is_used: bool) -> None:
        self.server = server
        self._book = book
        self._repaired = repaired
        self._is_used = is_used
        self._without = False
        """Only the next connection."""

    async def credentials(self) -> ServiceCredentials | None:
        """One certificate per messaging router, so that they cannot tell that we are the same."""
        if not self._is_used or self._without:
            self._without = False
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

    async def refused(self) -> None:
        """The router did not take our credentials."""
        self._without = True
        await self._give_up()

    async def subscribe(self, client: Client) -> Account:
        """NSUBS for all that is associated. If the router's account differs, begin anew.

        With other credentials every queue is subscribed, and so associated, by itself.
        """
        service = client.established.service
        expected = Account(*await self._book.associated(self.server.server_id))
        found = None if service is None else await self._account(client, service, expected)
        if found != expected:
            logger.warning("associations with a messaging router differ from its own: repairing")
            await self._give_up(found, expected)
            raise Disconnected("to begin anew")
        if expected.count:
            await self._book.replace_state(
                self.server.server_id,
                SubscriptionState.INACTIVE,
                SubscriptionState.ACTIVE,
                associated=True,
            )
        return expected

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

    async def _give_up(self, found: Account | None = None, expected: Account | None = None) -> None:
        """No queue is associated any more; later connections have other credentials."""
        await self._book.clear_association(self.server.server_id)
        self._repaired(self.server.server_id, found, expected)
