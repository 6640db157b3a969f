"""The second phase of deleting tokens, at one notification router: TDEL until it is answered."""

from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.context import NtfContext, failure_of
from heliograph.agent.notifications.records import TokenToDelete
from heliograph.agent.notifications.subscription import ActionFailure
from heliograph.agent.notifications.workers import BatchReport
from heliograph.db.dialects import Transaction
from heliograph.transport.client import ClientRequest
from heliograph.transport.errors import ClientError
from heliograph.wire import ntf
from heliograph.wire.addresses import ServerAddress


class TokenDeletion:
    def __init__(self, context: NtfContext, address: ServerAddress) -> None:
        self._context = context
        self._address = address

    async def perform(self, limit: int) -> BatchReport:
        tokens, next_due = await self._context.store.read(lambda tx: self._due(tx, limit))
        now = self._context.clock()
        if not tokens:
            return BatchReport(next_in=None if next_due is None else next_due - now)
        answers = await self._ask(tokens)
        failures = [failure_of(item) if isinstance(item, Exception) else None for item in answers]
        pairs = list(zip(tokens, failures, strict=True))
        await self._context.store.write(lambda tx: self._settle(tx, pairs, now))
        return BatchReport(len(tokens), ActionFailure.UNREACHABLE in failures)

    def _due(self, tx: Transaction, limit: int) -> tuple[list[TokenToDelete], float | None]:
        context = self._context
        longest = context.settings.intervals.later.last
        tokens = ntf_store.tokens_to_delete(
            tx, context.store.vault, self._address, context.clock(), longest, limit
        )
        return tokens, None if tokens else ntf_store.next_deletion(tx, self._address)

    async def _ask(self, tokens: list[TokenToDelete]) -> list[ntf.OK | ClientError]:
        try:
            client = await self._context.clients.ntf(self._address)
        except ClientError as exc:
            return [exc for _ in tokens]
        return await client.request_many(
            ClientRequest(ntf.TDEL(), token.token_id, token.key) for token in tokens
        )

    def _settle(
        self, tx: Transaction, pairs: list[tuple[TokenToDelete, ActionFailure | None]], now: float
    ) -> None:
        """Remove answered tokens; refused ones too, because the router has no such token."""
        gone = []
        for token, failure in pairs:
            if failure is ActionFailure.LATER:
                wait = self._context.settings.intervals.later.delay(token.attempts + 1, 0.0)
                ntf_store.delay_deletion(tx, token.token_id, now + wait)
            elif failure is not ActionFailure.UNREACHABLE:
                gone.append(token.token_id)
        ntf_store.remove_deletions(tx, gone)
