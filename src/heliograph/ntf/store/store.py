"""The notification router's store: its database, with a cache of the tokens in use.

Every change of a token goes through here, so that the cache agrees with the database.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.ntf.store import associations, pending, subscriptions, tokens
from heliograph.ntf.store.batcher import Batcher
from heliograph.ntf.store.records import (
    AssociatedIds,
    Incoming,
    PendingPush,
    PushKind,
    QueueKey,
    Subscription,
    Token,
)
from heliograph.ntf.store.sharing import Alone, Sharing
from heliograph.ntf.store.subscription_store import SubscriptionRange
from heliograph.ntf.store.subscriptions import (
    Added,
    NewSubscription,
    ServerRecord,
    SubscriptionRefusal,
)
from heliograph.ntf.store.tokens import NewToken
from heliograph.runtime.clock import steady_time
from heliograph.wire.ntf.tokens import DeviceToken, NtfSubStatus, SubscriptionState

T = TypeVar("T")

CACHED_TOKENS = 50_000


@dataclass(frozen=True, slots=True)
class Registration:
    """A token, its pending verification, and tokens that were removed to make room for others."""

    token: Token | None
    pushes: list[PendingPush]
    removed: list[bytes] = field(default_factory=list)


class NtfStore:
    """The router's store: one method per transaction, which is why it has many.

    Modules of this folder have the statements; this class has the cache of tokens.
    """

    def __init__(self, database: Database, push_ttl: float, sharing: Sharing | None = None) -> None:
        self.database = database
        self._alone = Alone()
        self.sharing: Sharing = sharing or self._alone
        self._is_shared = sharing is not None
        self._push_ttl = int(push_ttl * 1000)
        self._tokens: dict[bytes, Token] = {}
        self._dropped: set[bytes] = set()
        self._loads = 0
        self._changes = 0
        self._changed: dict[bytes, int] = {}
        self._registrations = Batcher(self._register)

    async def start(self) -> None:
        def newest(tx: Transaction) -> int:
            [[seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM last_notifications")
            [[pending_seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM pending_pushes")
            return int(max(seq, pending_seq))

        # Never a number that was used and deleted: the journal compares them over many runs.
        self._alone.last_seq = max(await self.database.read(newest), int(time.time() * 1e6) - 1)

    @property
    def last_seq(self) -> int:
        """The greatest `seq` that was taken so far."""
        return self.sharing.last_seq

    # Tokens.

    def is_cached(self, token_id: bytes) -> bool:
        return token_id in self._tokens

    async def token(self, token_id: bytes) -> Token | None:
        """Return a token from the cache: `load` it first. Read again if it was evicted since."""
        if token_id in self._dropped and token_id not in self._tokens:
            await self.load([token_id], [])
        return self._tokens.get(token_id)

    async def load(
        self, token_ids: Sequence[bytes], subscription_ids: Sequence[bytes]
    ) -> list[Subscription]:
        """Return the subscriptions and cache the tokens, including those of the subscriptions.

        Tokens that change during the read are read again: the reader may have seen a stale row.
        """

        def load(tx: Transaction) -> tuple[list[Token], list[Subscription]]:
            subs, substitutes = subscriptions.find_many(tx, subscription_ids)
            # An unknown subscription costs a query for a token that does not exist.
            wanted = {*token_ids, *(sub.token_id for sub in (*subs, *substitutes))}
            return tokens.find_many(tx, list(wanted)), subs

        self._loads += 1
        try:
            while True:
                before = self._changes
                found, subs = await self.database.read(load)
                stale = False
                if self._is_shared:
                    self._drop_missing(found, token_ids)
                for token in found:
                    if self._changed.get(token.token_id, 0) > before:
                        stale = True
                    else:
                        self._keep(token)
                if not stale:
                    return subs
        finally:
            self._loads -= 1
            if not self._loads:
                self._changed.clear()

    def cached(self, token_id: bytes) -> Token | None:
        """Return a token without a read, if no other process can have changed it."""
        return None if self._is_shared else self._tokens.get(token_id)

    def _drop_missing(self, found: Sequence[Token], token_ids: Sequence[bytes]) -> None:
        """Forget tokens that another process deleted."""
        for token_id in {*token_ids} - {token.token_id for token in found}:
            self._tokens.pop(token_id, None)

    def refresh(self, changed: Iterable[Token]) -> None:
        """Update tokens that are cached; others are read when needed."""
        for token in changed:
            self._note_change(token.token_id)
            if token.token_id in self._tokens:
                self._tokens[token.token_id] = token

    def _keep(self, token: Token) -> None:
        if len(self._tokens) >= CACHED_TOKENS and token.token_id not in self._tokens:
            self._dropped = set(list(self._tokens)[: CACHED_TOKENS // 10])
            for token_id in self._dropped:
                del self._tokens[token_id]
        self._tokens[token.token_id] = token

    def _replace(self, token: Token) -> None:
        self._note_change(token.token_id)
        self._keep(token)

    def _forget(self, token_id: bytes) -> None:
        self._note_change(token_id)
        self._tokens.pop(token_id, None)

    def _note_change(self, token_id: bytes) -> None:
        if self._loads:
            self._changes += 1
            self._changed[token_id] = self._changes

    async def register(self, new: NewToken) -> Registration:
        registration = await self._registrations.submit(new)
        if registration.token is not None:
            self._replace(registration.token)
        return registration

    async def _register(self, many: list[NewToken]) -> list[Registration]:
        now, expires_at = self._times()

        def register(tx: Transaction) -> tuple[list[Registration], list[bytes]]:
            first = self.sharing.take(tx, len(many))
            numbered = [(new, seq) for seq, new in enumerate(many, first)]
            registered = tokens.register_many(tx, numbered, now, expires_at)
            pushes = {
                token.token_id: pending.verification(token, seq, now, expires_at)
                for token, (_, seq) in zip(registered.tokens, numbered, strict=True)
                if token is not None
            }
            claimed = {push.token_id for push in self.sharing.claim(tx, list(pushes.values()))}
            return [
                Registration(
                    token,
                    []
                    if token is None or token.token_id not in claimed
                    else [pending.verification(token, seq, now, expires_at)],
                )
                for token, (_, seq) in zip(registered.tokens, numbered, strict=True)
            ], registered.removed

        results, removed = await self.database.write(register)
        for token_id in removed:
            self._forget(token_id)
        results[0].removed.extend(removed)
        return results

    async def collect_unverified(self, seconds: float, limit: int) -> list[bytes]:
        """Remove and return a page of tokens that were not verified for so many seconds."""
        before = round((time.time() - seconds) * 1000)
        removed = await self.database.write(lambda tx: tokens.collect_unverified(tx, before, limit))
        for token_id in removed:
            self._forget(token_id)
        return removed

    async def verify(
        self, token_id: bytes, code: bytes
    ) -> tuple[Token | None, list[PendingPush], list[bytes]]:
        """Return the token if the code is right, its due pushes, and the tokens it removed."""
        now, _ = self._times()

        def verify(tx: Transaction) -> tuple[Token | None, list[bytes], list[PendingPush]]:
            token, removed = tokens.verify(tx, token_id, code)
            if token is None:
                return None, [], []
            due = pending.due_for(tx, [token_id], now, PushKind.MESSAGE)
            return token, removed, self.sharing.claim(tx, due)

        token, removed, pushes = await self.database.write(verify)
        for other in removed:
            self._forget(other)
        if token is not None:
            self._replace(token)
        return token, pushes, removed

    async def replace(
        self, token_id: bytes, device: DeviceToken, code: bytes
    ) -> tuple[Token | None, list[PendingPush]]:
        now, expires_at = self._times()

        def replace(tx: Transaction) -> tuple[Token | None, list[PendingPush]]:
            seq = self.sharing.take(tx, 1)
            token = tokens.replace_device(tx, token_id, device, code, seq, now, expires_at)
            due = pending.due_for(tx, [token_id], now, PushKind.VERIFICATION)
            return token, self.sharing.claim(tx, due)

        token, pushes = await self.database.write(replace)
        if token is not None:
            self._replace(token)
        return token, pushes

    async def delete_token(self, token_id: bytes) -> None:
        await self.database.write(lambda tx: tokens.delete(tx, token_id))
        self._forget(token_id)

    async def set_cron(self, token_id: bytes, minutes: int) -> None:
        now, _ = self._times()
        await self.database.write(lambda tx: tokens.request_cron(tx, token_id, minutes, now))

    # Subscriptions.

    async def add_subscriptions(
        self, new: Sequence[NewSubscription], limit: int | None
    ) -> list[Added | SubscriptionRefusal]:
        def add(tx: Transaction) -> list[Added | SubscriptionRefusal]:
            results = subscriptions.add_many(tx, new, limit)
            self.sharing.added(
                tx, [item for item in results if isinstance(item, Added) and item.is_new]
            )
            return results

        return await self.database.write(add)

    async def delete_subscription(self, subscription_id: bytes) -> None:
        await self.database.write(lambda tx: subscriptions.delete(tx, subscription_id))

    async def collect_unused_servers(self, seconds: float) -> None:
        """Remove messaging routers that have had no subscription for so many seconds."""
        now = round(time.time() * 1000)
        before = now - round(seconds * 1000)
        await self.database.write(lambda tx: subscriptions.collect_unused_servers(tx, now, before))

    async def all_inactive(self) -> None:
        await self.database.write(subscriptions.all_inactive)

    async def servers(self) -> list[ServerRecord]:
        return await self.database.read(subscriptions.servers)

    async def proven_servers(self) -> set[int]:
        return await self.database.read(subscriptions.proven_servers)

    async def delete_unused_servers(self) -> None:
        await self.database.write(subscriptions.delete_unused_servers)

    # heliograph.ntf.store.subscription_store.SubscriptionStore

    async def page(
        self, server_id: int, after: bytes, limit: int, associated: bool | None
    ) -> list[QueueKey]:
        return await self.database.read(
            lambda tx: subscriptions.page(tx, server_id, after, limit, associated=associated)
        )

    async def set_statuses(
        self, server_id: int, statuses: Sequence[tuple[bytes, NtfSubStatus, bool]]
    ) -> None:
        await self.database.write(lambda tx: subscriptions.set_statuses(tx, server_id, statuses))

    async def confirm(self, server_id: int, page: SubscriptionRange, associated: bool) -> None:
        await self.database.write(
            lambda tx: subscriptions.confirm(tx, server_id, *page, associated)
        )

    async def set_ended(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> list[bytes]:
        return await self.database.write(
            lambda tx: subscriptions.set_ended(tx, server_id, notifier_ids, state)
        )

    async def reclaim(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return []  # nobody else subscribes for this router

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

    async def refuse(self, server_id: int, error: bytes) -> None:
        await self.database.write(lambda tx: subscriptions.refuse(tx, server_id, error))

    async def service(self, server_id: int) -> ServerRecord:
        return await self.database.read(lambda tx: subscriptions.server(tx, server_id))

    async def set_service(self, server: ServerRecord) -> None:
        await self.database.write(
            lambda tx: subscriptions.set_service(
                tx,
                server.server_id,
                server.service_chain,
                server.service_key,
                server.service_id,
            )
        )

    async def associated(self, server_id: int) -> AssociatedIds:
        return await self.database.read(lambda tx: associations.associated(tx, server_id))

    async def queue_keys(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return await self.database.read(
            lambda tx: subscriptions.queue_keys(tx, server_id, notifier_ids)
        )

    async def forget_deleted(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        await self.database.write(
            lambda tx: associations.forget_deleted(tx, server_id, notifier_ids)
        )

    async def set_surplus(self, server_id: int, count: int, ids_hash: bytes) -> None:
        await self.database.write(
            lambda tx: associations.set_surplus(tx, server_id, count, ids_hash)
        )

    async def clear_association(self, server_id: int) -> None:
        await self.database.write(lambda tx: associations.clear(tx, server_id))

    # Notifications and pending pushes.

    async def receive(self, server_id: int, incoming: list[Incoming]) -> pending.StoredBatch:
        now, expires_at = self._times()

        def receive(tx: Transaction) -> pending.StoredBatch:
            first = self.sharing.take(tx, len(incoming))
            stored = pending.receive(
                tx, server_id, incoming, first, now, expires_at, history=self._is_shared
            )
            return stored._replace(pushes=self.sharing.claim(tx, stored.pushes))

        return await self.database.write(receive)

    async def pending_page(
        self, after: pending.Cursor, limit: int
    ) -> tuple[list[PendingPush], pending.Cursor | None]:
        return await self.database.write(lambda tx: pending.page(tx, after, limit))

    async def read(self, function: Callable[[Transaction], T]) -> T:
        return await self.database.read(function)

    def _times(self) -> tuple[int, int]:
        now = round(steady_time() * 1000)
        return now, now + self._push_ttl
