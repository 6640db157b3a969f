"""Service credentials at one messaging router, and NSUBS for the queues associated with them.

The router counts and hashes the queues of the service. Queues deleted here stay associated there.
"""

import logging
import time
from collections.abc import Callable, Sequence

from heliograph.crypto.certificates import TlsCredentials, create_authority
from heliograph.ntf.store.records import AssociatedIds, QueueDigest, QueueKey
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.store.subscriptions.subscription_store import SubscriptionStore
from heliograph.transport.client import Client
from heliograph.transport.errors import Disconnected, RequestRefused
from heliograph.transport.handshake import Service, ServiceCredentials
from heliograph.wire import smp
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.ntf.tokens import SubscriptionState
from heliograph.wire.smp.ids import id_hash, ids_hash, xor
from heliograph.wire.versions import SMP_SERVICE_HASH

logger = logging.getLogger(__name__)

DriftRepaired = Callable[[int, QueueDigest | None, QueueDigest | None], None]


class ServiceAssociation:
    def __init__(
        self,
        server: ServerRecord,
        store: SubscriptionStore,
        drift_repaired: DriftRepaired,
        *,
        is_used: bool,
    ) -> None:
        self.server = server
        self._store = store
        self._drift_repaired = drift_repaired
        self._is_used = is_used
        self.differs = False
        self._ids = AssociatedIds()
        self._found = self._expected = QueueDigest(0)
        self._skip_once = False
        """Make the next connection without credentials."""

    async def credentials(self) -> ServiceCredentials | None:
        """Return the certificate for this router, or None to connect without a service.

        Each messaging router gets a certificate of its own, so that two routers cannot link us.
        """
        if not self._is_used or self._skip_once:
            self._skip_once = False
            return None
        self.server = server = await self._store.service(self.server.server_id)
        if server.service_chain is None or server.service_key is None:
            created = create_authority("heliograph", time.time())
            [chain] = created.chain
            self.server = server._replace(service_chain=chain, service_key=created.private_key)
            await self._store.set_service(self.server)
            return ServiceCredentials(ServiceRole.NOTIFIER, created)
        credentials = TlsCredentials((server.service_chain,), server.service_key)
        return ServiceCredentials(ServiceRole.NOTIFIER, credentials)

    async def rejected(self) -> None:
        """Discard the service, because the router rejected its credentials."""
        self._skip_once = True
        await self._discard()

    async def resume(self, client: Client, service: Service) -> QueueDigest:
        """Send NSUBS for all associated queues and return their digest.

        `differs` says whether the router's digest differs from ours.
        """
        self.differs = False
        known = (await self._store.service(self.server.server_id)).service_id
        if known != service.service_id:
            await self._begin(service, is_forgotten=known is not None)
            return QueueDigest(0)
        self.differs = not await self.agrees(client, service)
        if not self._ids.active:
            return QueueDigest(0)
        await self._store.replace_state(
            self.server.server_id,
            SubscriptionState.INACTIVE,
            SubscriptionState.ACTIVE,
            associated=True,
        )
        return QueueDigest(len(self._ids.active), ids_hash(self._ids.active))

    async def agrees(self, client: Client, service: Service) -> bool:
        """Send NSUBS and return whether the router's digest equals ours.

        Queues that were deleted here are still associated there, and expected. If the router does
        not accept NSUBS, discard the service and raise `Disconnected`.
        """
        self._ids = ids = await self._store.associated(self.server.server_id)
        self._expected = QueueDigest(*ids.digest())
        if not ids.active:
            self._found = self._expected
            return True
        nsubs = smp.NSUBS(self._expected.count, self._expected.ids_hash or b"")
        try:
            answer = await client.request(nsubs, service.service_id, service.key)
        except RequestRefused as exc:
            logger.warning("a messaging router refused NSUBS: %s", exc)
            await self._discard()
            raise Disconnected("reconnecting to start over") from exc
        has_hash = client.established.session.version >= SMP_SERVICE_HASH
        ids_hash_found = answer.ids_hash if has_hash else self._expected.ids_hash
        self._found = QueueDigest(answer.count, ids_hash_found)
        return self._found == self._expected

    def report_drift(self) -> None:
        self._drift_repaired(self.server.server_id, self._found, self._expected)

    async def explain(self) -> list[QueueKey]:
        """Return queues to subscribe again because the router may have deleted them.

        Forget those that were deleted here and, by the hashes, are now deleted there, too.
        """
        missing = self._expected.count - self._found.count
        difference = xor(self._expected.ids_hash or b"", self._found.ids_hash or b"")
        suspects = find_ids([*self._ids.active, *self._ids.deleted], missing, difference)
        deleted = set(suspects) & set(self._ids.deleted)
        server_id = self.server.server_id
        await self._store.forget_deleted(server_id, list(deleted))
        return await self._store.queue_keys(server_id, [i for i in suspects if i not in deleted])

    async def accept_surplus(self) -> None:
        """Expect the router's digest from now on: it has queues that are not ours any more."""
        ids, found = self._ids, self._found
        count = found.count - len(ids.active)
        if count < 0:
            await self._discard()
            raise Disconnected("reconnecting to start over")
        surplus = xor(found.ids_hash or b"", ids_hash(ids.active))
        await self._store.set_surplus(self.server.server_id, count, surplus)

    @property
    def active(self) -> int:
        """Return how many associated queues there were when both digests were last compared."""
        return len(self._ids.active)

    @property
    def deleted(self) -> int:
        """Return how many queues are associated there, and not subscribed here any more."""
        return len(self._ids.deleted) + self._ids.surplus_count

    async def _begin(self, service: Service, *, is_forgotten: bool) -> None:
        """Store the ID of a new service; no queue is associated with it."""
        server = self.server
        expected = (await self._store.associated(server.server_id)).digest()
        await self._store.clear_association(server.server_id)
        self.server = server._replace(service_id=service.service_id)
        await self._store.set_service(self.server)
        if is_forgotten:
            self._drift_repaired(server.server_id, None, QueueDigest(*expected))

    async def _discard(self) -> None:
        """Dissociate all queues; the next connection gets new credentials."""
        await self._store.clear_association(self.server.server_id)
        self._drift_repaired(self.server.server_id, None, None)


def find_ids(ids: Sequence[bytes], count: int, ids_xor: bytes) -> list[bytes]:
    """Return the one or two IDs whose hashes have this XOR; empty if there are none."""
    hashes = {id_hash(entity_id): entity_id for entity_id in ids}
    if count == 1:
        return [hashes[ids_xor]] if ids_xor in hashes else []
    if count == 2:
        for own_hash, entity_id in hashes.items():
            other = xor(own_hash, ids_xor)
            if other in hashes and other != own_hash:
                return [entity_id, hashes[other]]
    return []
