"""The store of the notification router: its database, with a cache of the tokens in use.

Every change of a token goes through here, so the cache never says what the store does not.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.ntf import debts, subscriptions, tokens
from heliograph.ntf.book import Span
from heliograph.ntf.gathering import Gathering
from heliograph.ntf.records import DebtKind, Incoming, Owed, QueueKey, Subscription, Token
from heliograph.ntf.subscriptions import Added, NewSubscription, Refusal, Server
from heliograph.ntf.tokens import NewToken
from heliograph.wire.ids import ids_hash
from heliograph.wire.tokens import DeviceToken, SubscriptionState, SubscriptionStatus

T = TypeVar("T")

CACHED_TOKENS = 50_000


class Store:
    def __init__(self, database: Database, debt_ttl: float) -> None:
        self.database = database
        self._debt_ttl = int(debt_ttl * 1000)
        self._tokens: dict[bytes, Token] = {}
        self._dropped: set[bytes] = set()
        self._loads = 0
        self._changes = 0
        self._changed: dict[bytes, int] = {}
        self._next_seq = 0
        self._registrations = Gathering(self._register)

    async def start(self) -> None:
        def newest(tx: Transaction) -> int:
            [[seq]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM last_notifications")
            [[owed]] = tx.query("SELECT COALESCE(MAX(seq), 0) FROM debts")
            return int(max(seq, owed))

        # Not what the store has forgotten: a journal compares them over many runs.
        self._next_seq = max(await self.database.read(newest) + 1, int(time.time() * 1e6))

    @property
    def last_seq(self) -> int:
        """No notification that was stored until now has a greater one."""
        return self._next_seq - 1

    # Tokens.

    def is_cached(self, token_id: bytes) -> bool:
        return token_id in self._tokens

    async def token(self, token_id: bytes) -> Token | None:
        """From the cache: `load` first. If it was dropped since, it is read again."""
        if token_id in self._dropped and token_id not in self._tokens:
            await self.load([token_id], [])
        return self._tokens.get(token_id)

    async def load(
        self, token_ids: Sequence[bytes], subscription_ids: Sequence[bytes]
    ) -> list[Subscription]:
        """Bring tokens into the cache, also those of the subscriptions, which are the result.

        What changes while it is read is read again: the reader may have seen it as it was before.
        """

        def load(tx: Transaction) -> tuple[list[Token], list[Subscription]]:
            subs = subscriptions.find_many(tx, subscription_ids)
            wanted = {*token_ids, *(sub.token_id for sub in subs)}
            return tokens.find_many(tx, list(wanted)), subs

        self._loads += 1
        try:
            while True:
                before = self._changes
                found, subs = await self.database.read(load)
                stale = False
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
        return self._tokens.get(token_id)

    def refresh(self, changed: Iterable[Token]) -> None:
        """Only tokens that are kept already: others are read when they are needed."""
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

    async def register(self, new: NewToken) -> tuple[Token | None, list[Owed]]:
        token, owed = await self._registrations.ask(new)
        if token is not None:
            self._replace(token)
        return token, owed

    async def _register(self, many: list[NewToken]) -> list[tuple[Token | None, list[Owed]]]:
        first = self._take_seqs(len(many))
        now, expires_at = self._times()
        numbered = [(new, seq) for seq, new in enumerate(many, first)]

        def register(tx: Transaction) -> list[tuple[Token | None, list[Owed]]]:
            found = tokens.register_many(tx, numbered, now, expires_at)
            return [
                (token, [] if token is None else [debts.verification(token, seq, now, expires_at)])
                for token, (_, seq) in zip(found, numbered, strict=True)
            ]

        return await self.database.write(register)

    async def verify(
        self, token_id: bytes, code: bytes
    ) -> tuple[Token | None, list[Owed], list[bytes]]:
        """The token if the code is right, what came for it before, and tokens that it removed."""
        now, _ = self._times()

        def verify(tx: Transaction) -> tuple[Token | None, list[bytes], list[Owed]]:
            token, removed = tokens.verify(tx, token_id, code)
            if token is None:
                return None, [], []
            return token, removed, debts.due_to(tx, [token_id], now, DebtKind.MESSAGE)

        token, removed, owed = await self.database.write(verify)
        for other in removed:
            self._forget(other)
        if token is not None:
            self._replace(token)
        return token, owed, removed

    async def replace(
        self, token_id: bytes, device: DeviceToken, code: bytes
    ) -> tuple[Token | None, list[Owed]]:
        seq = self._take_seqs(1)
        now, expires_at = self._times()

        def replace(tx: Transaction) -> tuple[Token | None, list[Owed]]:
            token = tokens.replace_device(tx, token_id, device, code, seq, now, expires_at)
            return token, debts.due_to(tx, [token_id], now, DebtKind.VERIFICATION)

        token, owed = await self.database.write(replace)
        if token is not None:
            self._replace(token)
        return token, owed

    async def delete_token(self, token_id: bytes) -> None:
        await self.database.write(lambda tx: tokens.delete(tx, token_id))
        self._forget(token_id)

    async def set_cron(self, token_id: bytes, minutes: int) -> None:
        now, _ = self._times()
        await self.database.write(lambda tx: tokens.request_cron(tx, token_id, minutes, now))

    # Subscriptions.

    async def add_subscriptions(
        self, new: Sequence[NewSubscription], limit: int | None
    ) -> list[Added | Refusal]:
        return await self.database.write(lambda tx: subscriptions.add_many(tx, new, limit))

    async def delete_subscription(self, subscription_id: bytes) -> None:
        await self.database.write(lambda tx: subscriptions.delete(tx, subscription_id))

    async def all_inactive(self) -> None:
        await self.database.write(subscriptions.all_inactive)

    async def servers(self) -> list[Server]:
        return await self.database.read(subscriptions.servers)

    # heliograph.ntf.book.Book

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

    async def confirm(self, server_id: int, span: Span, associated: bool) -> None:
        await self.database.write(
            lambda tx: subscriptions.confirm(tx, server_id, *span, associated)
        )

    async def set_ended(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> list[bytes]:
        return await self.database.write(
            lambda tx: subscriptions.set_ended(tx, server_id, notifier_ids, state)
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

    async def refuse(self, server_id: int, error: bytes) -> None:
        await self.database.write(lambda tx: subscriptions.refuse(tx, server_id, error))

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
        first = self._take_seqs(len(incoming))
        now, expires_at = self._times()
        return await self.database.write(
            lambda tx: debts.receive(tx, server_id, incoming, first, now, expires_at)
        )

    async def owed_page(
        self, after: debts.Place, limit: int
    ) -> tuple[list[Owed], debts.Place | None]:
        return await self.database.write(lambda tx: debts.page(tx, after, limit))

    async def read(self, function: Callable[[Transaction], T]) -> T:
        return await self.database.read(function)

    def _take_seqs(self, count: int) -> int:
        """The first of so many numbers that nothing has had before."""
        first = self._next_seq
        self._next_seq += count
        return first

    def _times(self) -> tuple[int, int]:
        now = round(time.time() * 1000)
        return now, now + self._debt_ttl
