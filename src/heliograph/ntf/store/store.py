"""The notification router's store: its database, with a cache of the tokens in use.

Every change of a token goes through here, so that the cache agrees with the database.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.ntf.store import owners, pending, receiving, tokens, wakeups
from heliograph.ntf.store.batcher import Batcher
from heliograph.ntf.store.coordination import Coordinator, SingleProcess
from heliograph.ntf.store.devices import encode_device
from heliograph.ntf.store.records import (
    Incoming,
    PendingPush,
    PushKind,
    Subscription,
    Token,
)
from heliograph.ntf.store.restrictions import Restrictions, read_restrictions
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.ntf.store.subscriptions.server_store import DatabaseServerStore
from heliograph.ntf.store.subscriptions.subscriptions import (
    Added,
    NewSubscription,
    SubscriptionRefusal,
)
from heliograph.ntf.store.tokens import NewToken
from heliograph.runtime.clock import steady_time
from heliograph.wire.ntf.tokens import DeviceToken

T = TypeVar("T")

CACHED_TOKENS = 50_000


@dataclass(frozen=True, slots=True)
class Registration:
    """A token, its pending verification, and tokens that were removed to make room for others."""

    token: Token | None
    pushes: list[PendingPush]
    removed: list[bytes] = field(default_factory=list)


def _latest_pushes(batches: list[receiving.StoredBatch]) -> list[receiving.StoredBatch]:
    """Leave out pushes that a later batch has, with more notifications."""
    found: list[receiving.StoredBatch] = []
    later: set[bytes] = set()
    for batch in reversed(batches):
        pushes = [push for push in batch.pushes if push.token_id not in later]
        later |= {push.token_id for push in pushes}
        found.append(batch._replace(pushes=pushes))
    return found[::-1]


class NtfStore:
    """The router's store: one method per transaction.

    Modules of this folder have the statements; this class has the cache of tokens.
    """

    def __init__(
        self, database: Database, push_ttl: float, coordinator: Coordinator | None = None
    ) -> None:
        self.database = database
        self.coordinator: Coordinator = coordinator or SingleProcess()
        self._is_shared = coordinator is not None
        self._push_ttl = int(push_ttl * 1000)
        self._tokens: dict[bytes, Token] = {}
        self._dropped: set[bytes] = set()
        self._loads = 0
        self._changes = 0
        self._changed: dict[bytes, int] = {}
        self._registrations = Batcher(self._register)
        self._received = Batcher(self._receive)
        self._loaded = Batcher(self._load_many)
        self.servers = DatabaseServerStore(database)
        """The subscriptions and routers that subscribers of this process use."""
        self.restrictions = Restrictions()
        """Throttles, pauses and alerts in force."""

    async def start(self) -> None:
        def newest(tx: Transaction) -> int:
            [[seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM last_notifications")
            [[pending_seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM pending_pushes")
            return int(max(seq, pending_seq))

        await self.load_restrictions()
        await self.coordinator.start(await self.database.read(newest))

    async def load_restrictions(self) -> None:
        """Read the restrictions again."""
        self.restrictions.replace(await self.database.read(read_restrictions))

    @property
    def last_seq(self) -> int:
        """The greatest `seq` that this process has taken."""
        return self.coordinator.last_seq

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

        Several processes do not answer from their caches, so their clients share reads.
        """
        if self._is_shared:
            return await self._loaded.submit((token_ids, subscription_ids))
        return await self._load(token_ids, subscription_ids)

    async def _load_many(
        self, wanted: list[tuple[Sequence[bytes], Sequence[bytes]]]
    ) -> list[list[Subscription]]:
        token_ids = {item for some, _ in wanted for item in some}
        subscription_ids = {item for _, some in wanted for item in some}
        subs = await self._load(list(token_ids), list(subscription_ids))
        found = {sub.subscription_id: sub for sub in subs}
        return [[found[item] for item in some if item in found] for _, some in wanted]

    async def _load(
        self, token_ids: Sequence[bytes], subscription_ids: Sequence[bytes]
    ) -> list[Subscription]:
        """Read tokens again that change during the read, which may have seen a stale row."""

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
            numbered = list(zip(many, self.coordinator.take(tx, len(many)), strict=True))
            registered = tokens.register_many(tx, numbered, now, expires_at)
            if registered.removed:
                self.coordinator.take_deleted(tx)
            pushes = {
                token.token_id: pending.verification(token, seq, now, expires_at)
                for token, (_, seq) in zip(registered.tokens, numbered, strict=True)
                if token is not None
            }
            claimed = {push.token_id for push in self.coordinator.claim(tx, list(pushes.values()))}
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
        """Remove and return a page of tokens that have been unverified for this many seconds."""
        before = round((steady_time() - seconds) * 1000)

        def collect(tx: Transaction) -> list[bytes]:
            removed = tokens.collect_unverified(tx, before, limit)
            self.coordinator.take_deleted(tx)
            return removed

        removed = await self.database.write(collect)
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
            if removed:
                self.coordinator.take_deleted(tx)
            return token, removed, self.coordinator.claim(tx, due)

        token, removed, pushes = await self.database.write(verify)
        for other in removed:
            self._forget(other)
        if token is not None:
            self._replace(token)
        return token, pushes, removed

    async def replace(
        self, token_id: bytes, device: DeviceToken, code: bytes
    ) -> tuple[Token | None, list[PendingPush], list[bytes]]:
        """Return the token, its pending verification, and tokens removed to make room for it."""
        now, expires_at = self._times()

        def replace(tx: Transaction) -> tuple[Token | None, list[PendingPush], list[bytes]]:
            [seq] = self.coordinator.take(tx, 1)
            token = tokens.replace_device(tx, token_id, device, code, seq, now, expires_at)
            removed = tokens.make_room(tx, [encode_device(device)])
            if removed:
                self.coordinator.take_deleted(tx)
            due = pending.due_for(tx, [token_id], now, PushKind.VERIFICATION)
            return None if token_id in removed else token, self.coordinator.claim(tx, due), removed

        token, pushes, removed = await self.database.write(replace)
        for other in removed:
            self._forget(other)
        if token is not None:
            self._replace(token)
        return token, pushes, removed

    async def delete_token(self, token_id: bytes) -> None:
        def delete(tx: Transaction) -> None:
            tokens.delete(tx, token_id)
            self.coordinator.take_deleted(tx)

        await self.database.write(delete)
        self._forget(token_id)

    async def mark_seen(self, seen: Sequence[Token]) -> tuple[list[bytes], list[PendingPush]]:
        """Record that owners were seen; return the tokens that this restored, and their pushes."""
        now, _ = self._times()
        token_ids = [token.token_id for token in seen]

        def mark(tx: Transaction) -> tuple[list[bytes], list[PendingPush]]:
            restored = owners.mark_seen(tx, token_ids, now)
            due = pending.due_for(tx, restored, now) if restored else []
            return restored, self.coordinator.claim(tx, due)

        result = await self.database.write(mark)
        self.refresh([replace(token, seen_at=now) for token in seen])
        return result

    def forget_tokens(self, token_ids: Iterable[bytes]) -> None:
        """Read tokens again when they are needed: something else changed them."""
        for token_id in token_ids:
            self._forget(token_id)

    async def set_cron(self, token_id: bytes, minutes: int) -> None:
        now, _ = self._times()
        await self.database.write(lambda tx: wakeups.request_cron(tx, token_id, minutes, now))

    # Subscriptions.

    async def add_subscriptions(
        self, new: Sequence[NewSubscription], limit: int | None
    ) -> list[Added | SubscriptionRefusal]:
        def add(tx: Transaction) -> list[Added | SubscriptionRefusal]:
            results = subscriptions.add_many(tx, new, limit)
            self.coordinator.added(
                tx, [item for item in results if isinstance(item, Added) and item.is_new]
            )
            return results

        return await self.database.write(add)

    async def delete_subscription(self, subscription_id: bytes) -> None:
        def delete(tx: Transaction) -> None:
            subscriptions.delete(tx, subscription_id)
            self.coordinator.take_deleted(tx)

        await self.database.write(delete)

    # Notifications and pending pushes.

    async def receive(self, server_id: int, incoming: list[Incoming]) -> receiving.StoredBatch:
        if self._is_shared:
            return await self._received.submit((server_id, incoming))
        [stored] = await self._receive([(server_id, incoming)])
        return stored

    async def _receive(
        self, batches: list[tuple[int, list[Incoming]]]
    ) -> list[receiving.StoredBatch]:
        """Store batches of several messaging routers in one transaction."""
        now, expires_at = self._times()
        coordinator = self.coordinator

        def receive(tx: Transaction) -> list[receiving.StoredBatch]:
            queues = [(server, item.notifier_id) for server, some in batches for item in some]
            coordinator.lock_tokens(tx, queues)
            seqs = iter(coordinator.take(tx, len(queues)))
            return [
                receiving.receive(
                    tx,
                    server_id,
                    incoming,
                    [*islice(seqs, len(incoming))],
                    now,
                    expires_at,
                    owner=coordinator.owner,
                    restrictions=self.restrictions,
                )
                for server_id, incoming in batches
            ]

        return _latest_pushes(await self.database.write_concurrently(receive))

    async def pending_page(
        self, after: pending.Cursor, limit: int
    ) -> tuple[list[PendingPush], pending.Cursor | None]:
        return await self.database.write_concurrently(lambda tx: pending.page(tx, after, limit))

    async def read(self, function: Callable[[Transaction], T]) -> T:
        return await self.database.read(function)

    def _times(self) -> tuple[int, int]:
        now = round(steady_time() * 1000)
        return now, now + self._push_ttl
