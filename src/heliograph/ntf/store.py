"""The store of the notification router: its database, with a cache of the tokens in use.

Every change of a token goes through here, so the cache never says what the store does not.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.ntf import debts, subscriptions, tokens
from heliograph.ntf.records import DebtKind, Incoming, Owed, QueueKey, Subscription, Token
from heliograph.ntf.subscriptions import NewSubscription, Server
from heliograph.wire.ids import ids_hash
from heliograph.wire.tokens import DeviceToken, SubscriptionState, SubscriptionStatus

T = TypeVar("T")

CACHED_TOKENS = 50_000


class Store:
    def __init__(self, database: Database, debt_ttl: float) -> None:
        self.database = database
        self._debt_ttl = int(debt_ttl * 1000)
        self._tokens: dict[bytes, Token] = {}
        self._next_seq = 0

    async def start(self) -> None:
        def newest(tx: Transaction) -> int:
            [[seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM last_notifications")
            [[owed]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM debts")
            return int(max(seq, owed))

        self._next_seq = await self.database.read(newest) + 1

    # Tokens.

    def cached(self, token_id: bytes) -> Token | None:
        return self._tokens.get(token_id)

    def keep(self, found: Iterable[Token]) -> None:
        if len(self._tokens) > CACHED_TOKENS:
            for token_id in list(self._tokens)[: CACHED_TOKENS // 10]:
                del self._tokens[token_id]
        for token in found:
            self._tokens[token.token_id] = token

    def refresh(self, changed: Iterable[Token]) -> None:
        """Only tokens that are kept already: others are read when they are needed."""
        for token in changed:
            if token.token_id in self._tokens:
                self._tokens[token.token_id] = token

    async def load(
        self, token_ids: Sequence[bytes], subscription_ids: Sequence[bytes]
    ) -> list[Subscription]:
        """Bring tokens into the cache, also those of the subscriptions, which are the result."""

        def load(tx: Transaction) -> tuple[list[Token], list[Subscription]]:
            subs = subscriptions.find_many(tx, subscription_ids)
            wanted = {*token_ids, *(sub.token_id for sub in subs)} - self._tokens.keys()
            return tokens.find_many(tx, list(wanted)), subs

        found, subs = await self.database.read(load)
        self.keep(found)
        return subs

    async def register(self, new: tokens.NewToken) -> tuple[Token | None, list[Owed]]:
        now, expires_at = self._times()

        def register(tx: Transaction) -> tuple[Token | None, list[Owed]]:
            token = tokens.register(tx, new, now, expires_at)
            owed = [] if token is None else debts.owed_to(tx, token.token_id)
            return token, _verifications(owed)

        token, owed = await self.database.write(register)
        if token is not None:
            self.keep([token])
        return token, owed

    async def verify(self, token_id: bytes, code: bytes) -> Token | None:
        token, removed = await self.database.write(lambda tx: tokens.verify(tx, token_id, code))
        for other in removed:
            self._tokens.pop(other, None)
        if token is not None:
            self.keep([token])
        return token

    async def replace(
        self, token_id: bytes, device: DeviceToken, code: bytes
    ) -> tuple[Token | None, list[Owed]]:
        now, expires_at = self._times()

        def replace(tx: Transaction) -> tuple[Token | None, list[Owed]]:
            token = tokens.replace_device(tx, token_id, device, code, now, expires_at)
            return token, _verifications(debts.owed_to(tx, token_id))

        token, owed = await self.database.write(replace)
        if token is not None:
            self.keep([token])
        return token, owed

    async def delete_token(self, token_id: bytes) -> None:
        await self.database.write(lambda tx: tokens.delete(tx, token_id))
        self._tokens.pop(token_id, None)

    async def set_cron(self, token_id: bytes, minutes: int) -> None:
        """A token that was never woken is due at once."""
        due_at = int(time.time() * 1000) if minutes else None
        await self.database.write(lambda tx: tokens.set_cron(tx, token_id, minutes, due_at))

    # Subscriptions.

    async def add_subscription(
        self, new: NewSubscription, limit: int | None
    ) -> tuple[Subscription | None, Server | None, bool]:
        """The subscription and its router, and whether it is new; None if refused.

        Beyond the limit there is no subscription but a router.
        """

        def add(tx: Transaction) -> tuple[Subscription | None, Server | None, bool]:
            if limit is not None and subscriptions.count_of_token(tx, new.token_id) >= limit:
                server_id = subscriptions.server_for(tx, new.address)
                return None, subscriptions.server(tx, server_id), False
            subscription, created = subscriptions.add(tx, new)
            if subscription is None:
                return None, None, False
            return subscription, subscriptions.server(tx, subscription.server_id), created

        return await self.database.write(add)

    async def delete_subscription(self, subscription_id: bytes) -> None:
        await self.database.write(lambda tx: subscriptions.delete(tx, subscription_id))

    async def servers(self) -> list[Server]:
        return await self.database.read(subscriptions.servers)

    # heliograph.ntf.subscriber.Book

    async def page(
        self, server_id: int, after: bytes, limit: int, associated: bool | None
    ) -> list[QueueKey]:
        return await self.database.read(
            lambda tx: subscriptions.page(tx, server_id, after, limit, associated=associated)
        )

    async def set_statuses(
        self, server_id: int, statuses: Sequence[tuple[bytes, SubscriptionStatus, bool]]
    ) -> None:
        await self.database.write(lambda tx: subscriptions.set_statuses(tx, server_id, statuses))

    async def set_state(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> None:
        await self.database.write(
            lambda tx: subscriptions.set_state(tx, server_id, notifier_ids, state)
        )

    async def replace_state(
        self,
        server_id: int,
        before: SubscriptionState,
        after: SubscriptionState,
        associated: bool | None = None,
    ) -> None:
        await self.database.write(
            lambda tx: subscriptions.replace_state(
                tx, server_id, before, after, associated=associated
            )
        )

    async def service(self, server_id: int) -> Server:
        return await self.database.read(lambda tx: subscriptions.server(tx, server_id))

    async def set_service(self, server: Server) -> None:
        await self.database.write(
            lambda tx: subscriptions.set_service(
                tx,
                server.server_id,
                server.service_chain,
                server.service_key,
                server.service_id,
            )
        )

    async def associated(self, server_id: int) -> tuple[int, bytes]:
        """How many subscriptions are associated with our service, and the hash of their IDs."""
        ids = await self.database.read(lambda tx: subscriptions.associated_ids(tx, server_id))
        return len(ids), ids_hash(ids)

    async def clear_association(self, server_id: int) -> None:
        await self.database.write(lambda tx: subscriptions.clear_association(tx, server_id))

    # Notifications and what is owed.

    async def receive(self, server_id: int, incoming: list[Incoming]) -> debts.Stored:
        first = self._next_seq
        self._next_seq += len(incoming)
        now, expires_at = self._times()
        return await self.database.write(
            lambda tx: debts.receive(tx, server_id, incoming, first, now, expires_at)
        )

    async def read(self, function: Callable[[Transaction], T]) -> T:
        return await self.database.read(function)

    def _times(self) -> tuple[int, int]:
        now = int(time.time() * 1000)
        return now, now + self._debt_ttl


def _verifications(owed: list[Owed]) -> list[Owed]:
    return [item for item in owed if item.kind is DebtKind.VERIFICATION]
