"""The second phase of deleting tokens, at one notification router: TDEL until it is answered."""

from typing import Any

from heliograph.agent import ntf_store
from heliograph.agent.ntf_context import NtfContext, failure_of
from heliograph.agent.ntf_records import TokenToDelete
from heliograph.agent.ntf_subscription import Failure
from heliograph.agent.workers import Report
from heliograph.db.dialects import Transaction
from heliograph.transport.client import ClientRequest
from heliograph.transport.errors import ClientError
from heliograph.wire import ntf
from heliograph.wire.addresses import ServerAddress


class TokenDeletion:
    def __init__(self, context: NtfContext, address: ServerAddress) -> None:
        self._context = context
        self._address = address

    async def perform(self, limit: int) -> Report:
        tokens, next_due = await self._context.store.read(lambda tx: self._due(tx, limit))
        now = self._context.clock()
        if not tokens:
            return Report(next_in=None if next_due is None else next_due - now)
        answers = await self._ask(tokens)
        failures = [failure_of(item) if isinstance(item, Exception) else None for item in answers]
        pairs = list(zip(tokens, failures, strict=True))
        await self._context.store.write(lambda tx: self._settle(tx, pairs, now))
        return Report(len(tokens), Failure.UNREACHABLE in failures)

    def _due(self, tx: Transaction, limit: int) -> tuple[list[TokenToDelete], float | None]:
        context = self._context
        longest = context.settings.intervals.later.last
        tokens = ntf_store.tokens_to_delete(
            tx, context.store.vault, self._address, context.clock(), longest, limit
        )
        return tokens, None if tokens else ntf_store.next_deletion(tx, self._address)

    async def _ask(self, tokens: list[TokenToDelete]) -> list[Any]:
        try:
            client = await self._context.clients.ntf(self._address)
        except ClientError as exc:
            return [exc] * len(tokens)
        return await client.request_many(
            ClientRequest(ntf.TDEL(), token.token_id, token.key) for token in tokens
        )

    def _settle(
        self, tx: Transaction, pairs: list[tuple[TokenToDelete, Failure | None]], now: float
    ) -> None:
        """What was refused for good is deleted too: the router has no such token."""
        gone = []
        for token, failure in pairs:
            if failure is Failure.LATER:
                wait = self._context.settings.intervals.later.delay(token.attempts + 1, 0.0)
                ntf_store.delay_deletion(tx, token.token_id, now + wait)
            elif failure is not Failure.UNREACHABLE:
                gone.append(token.token_id)
        ntf_store.remove_deletions(tx, gone)
