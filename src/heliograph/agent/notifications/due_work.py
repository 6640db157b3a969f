"""Performs the due actions of subscriptions at one router, in batches.

It reads due actions from the store, asks the router, and stores what `after` decides for each
answer. `KeyWork` and `SubscriptionWork` build the requests.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

from heliograph.agent.connections import queues
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.context import NtfContext
from heliograph.agent.notifications.records import NtfSubscription, NtfToken, SubAction
from heliograph.agent.notifications.subscription import ActionFailure, ActionOutcome, after, allowed
from heliograph.agent.notifications.workers import BatchReport
from heliograph.agent.records import NotifierCredentials, RcvQueue
from heliograph.db.dialects import Transaction
from heliograph.wire.addresses import ServerAddress

WakeRouter = Callable[[ServerAddress], None]


class WorkItem(NamedTuple):
    """A subscription with a due action, and its queue if the action needs one."""

    sub: NtfSubscription
    queue: RcvQueue | None


class WorkResult(NamedTuple):
    """The outcome of a work item. `notifier` is what NKEY returned for the queue."""

    item: WorkItem
    outcome: ActionOutcome
    notifier: NotifierCredentials | None = None


class DueWork(ABC):
    """The work of one stage at one router. `wake` wakes a worker of the other stage."""

    column: ClassVar[Literal["smp", "ntf"]]
    actions: ClassVar[tuple[SubAction, ...]]

    def __init__(self, context: NtfContext, address: ServerAddress, wake: WakeRouter) -> None:
        self._context = context
        self._address = address
        self._wake = wake

    async def perform(self, limit: int) -> BatchReport:
        # One process at a time: a messaging router keeps the keys that arrived last.
        name = f"{self.column} subscriptions {self._address.fingerprint.hex()}"
        async with self._context.store.locks.hold(name):
            return await self._perform(limit)

    async def _perform(self, limit: int) -> BatchReport:
        context = self._context
        items, token, next_due = await context.store.read(lambda tx: self._due(tx, limit))
        if not items:
            wait = None if next_due is None else next_due - context.clock()
            return BatchReport(next_in=wait)
        results = await self._ask(items, token)
        for address in await context.store.write(lambda tx: self._store(tx, results, token)):
            self._wake(address)
        unreachable = any(item.outcome is ActionFailure.UNREACHABLE for item in results)
        return BatchReport(len(items), unreachable)

    def _due(
        self, tx: Transaction, limit: int
    ) -> tuple[list[WorkItem], NtfToken | None, float | None]:
        """Return the due subscriptions and the token; if none is due, when the next one will be."""
        context = self._context
        token = ntf_store.load_token(tx, context.store.vault)
        actions = allowed(self.actions, token if self._serves(token) else None)
        place = self.column, self._address, actions
        settings = context.settings
        subs = ntf_store.subscriptions_due(tx, *place, settings.intervals, context.clock(), limit)
        if not subs:
            return [], token, ntf_store.next_due(tx, *place)
        return self._items(tx, subs), token, None

    def _store(
        self, tx: Transaction, results: Sequence[WorkResult], token: NtfToken | None
    ) -> set[ServerAddress]:
        """Store results, and return the routers of the other stage that have work now."""
        context = self._context
        now, intervals = context.clock(), context.settings.intervals
        changes, routers = [], set()
        for (sub, queue), outcome, notifier in results:
            if not ntf_store.is_current(tx, sub):
                continue
            changed = after(sub, outcome, token, intervals, now)
            changes.append((sub, changed))
            deleted = sub.action is SubAction.SMP_DELETE and (
                changed is None or changed.action is not SubAction.SMP_DELETE
            )
            if queue is not None and (deleted or notifier is not None):
                queues.set_notifier(tx, context.store.vault, queue.queue_id, notifier)
            if changed is not None and changed.action is not None:
                if changed.action.at_smp and self.column == "ntf":
                    routers.add(changed.smp_address)
                elif not changed.action.at_smp and self.column == "smp":
                    routers.add(changed.ntf_address)
        ntf_store.store_results(tx, changes)
        return routers

    def _serves(self, token: NtfToken | None) -> bool:
        """Return whether actions other than deletions are allowed for this token here."""
        return True

    @abstractmethod
    def _items(self, tx: Transaction, subs: Sequence[NtfSubscription]) -> list[WorkItem]:
        """Find the queues of due subscriptions."""

    @abstractmethod
    async def _ask(self, items: Sequence[WorkItem], token: NtfToken | None) -> Sequence[WorkResult]:
        """Ask the router, and return a result for each item."""
