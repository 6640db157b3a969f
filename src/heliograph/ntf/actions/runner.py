"""Apply actions in a running router: those that operators request, and automatic ones."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from heliograph.actions.contract import Action, ActionKind, Refusal
from heliograph.actions.table import read_actions
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.journal.hashing import Hasher
from heliograph.journal.identity import JournalIdentity
from heliograph.ntf.actions import requests
from heliograph.ntf.actions.judging import Refused, judge
from heliograph.ntf.actions.observing import ActionObserver
from heliograph.ntf.actions.options import ActionCap
from heliograph.ntf.actions.resolving import resolve
from heliograph.ntf.actions.waking import list_members
from heliograph.ntf.router import NtfRouter
from heliograph.ntf.store import wakes
from heliograph.ntf.store.actions import applying, records
from heliograph.ntf.store.actions.applying import Caps, Postponed, Result
from heliograph.ntf.store.actions.records import ActionState, KnownAction
from heliograph.ntf.store.actions.restrictions import expire_restrictions
from heliograph.ntf.store.actions.rules import Applied, ResolvedAction
from heliograph.ntf.store.actions.subjects import address_of
from heliograph.ntf.store.records import QueueKey
from heliograph.runtime.errors import StartError
from heliograph.wire.errors import WireError

__all__ = ["ActionRunner", "ActionSettings"]

logger = logging.getLogger(__name__)

REQUEST_INTERVAL = 0.5
"""Seconds between looks for requests."""
FORGET_AFTER = 30 * 86_400_000
"""Milliseconds after which an applied action is forgotten: longer than any is valid."""
BATCH = 100

NOT_REVERSIBLE = "nothing_to_undo"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """Where actions come from, and what may be done. `place` is None if there is no table."""

    place: str | None
    signer: bytes | None
    automatic: frozenset[ActionKind]
    caps: dict[ActionKind, ActionCap]
    poll: float


@dataclass(slots=True)
class _Run:
    """Results of one pass, by action ID."""

    results: dict[str, str] = field(default_factory=dict)
    capped: list[ActionKind] = field(default_factory=list)


class ActionRunner:
    """Read the table, and apply what is valid, agreed with and allowed; `run` until cancelled.

    Of several processes that are one router, the leader does it.
    """

    def __init__(
        self,
        router: NtfRouter,
        identity: JournalIdentity,
        directory: Path,
        settings: ActionSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.observer = ActionObserver(router.journal, router.store.restrictions)
        self._router = router
        self._identity = identity
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._is_failing = False
        self._recording = asyncio.Lock()
        self._refused: list[Refused] = []
        self._passes = 0
        self._tried: dict[str, int] = {}  # the last pass that did not apply an action, by its ID

    async def run(self) -> None:
        poll_at = 0.0
        while True:
            try:
                if not self._router.store.coordinator.is_leader:
                    await self._router.store.load_restrictions()
                    await asyncio.sleep(REQUEST_INTERVAL)
                    continue
                await self.expire_restrictions()
                await self.record_recovered()
                await self.serve_requests()
                if time.monotonic() >= poll_at and self._settings.place is not None:
                    poll_at = time.monotonic() + self._settings.poll
                    await self.apply_automatic()
            except (DatabaseError, OSError) as exc:
                logger.error("actions cannot be applied, retrying: %s", exc)
            await asyncio.sleep(REQUEST_INTERVAL)

    async def expire_restrictions(self) -> None:
        """Remove throttles, pauses and alerts whose time is over; they have ended already."""
        store, now = self._router.store, self._now_ms()
        if any(item.until <= now for item in store.restrictions):
            await store.database.write(lambda tx: expire_restrictions(tx, now))
            await store.load_restrictions()

    async def record_recovered(self) -> None:
        """Record what was applied or undone and may not be in the journal because of a kill."""
        async with self._recording:
            while found := await self._router.store.read(lambda tx: records.unrecorded(tx, BATCH)):
                for known, removed in found:
                    await self._record(known, removed)
                await self._recorded([known.action_id for known, _ in found])

    async def _record(self, known: KnownAction, removed: bytes) -> None:
        hashed = await self._hashed(known.kind, known.subject)
        if known.state is ActionState.UNDONE:
            self.observer.undone(known.action_id, known.kind, hashed)
            return
        if known.state is ActionState.EXPIRED:
            self.observer.expired(known.action_id, known.kind, hashed)
            return
        self.observer.applied(known.action_id, known.kind, hashed)
        if known.kind is ActionKind.REMOVE_TOKEN:
            self._router.observer.tokens_removed([known.subject], "dead")
        for deleted in applying.deleted_by(known, removed):
            self._router.observer.subscription_deleted(deleted.token_id, deleted.subscription_id)

    async def _recorded(self, action_ids: list[str]) -> None:
        """Wait until events are on disk, then mark their actions."""
        await self._router.journal.synced()
        await self._router.store.database.write(lambda tx: records.set_recorded(tx, action_ids))

    async def serve_requests(self) -> None:
        """Do what operators requested, and answer."""
        for request in list(requests.pending_requests(self._directory)):
            if request.undo:
                results = {item: await self.undo(item) for item in request.action_ids}
            else:
                results = await self.apply(request.action_ids)
            requests.answer(self._directory, request, results)

    async def apply_automatic(self) -> None:
        """Apply valid actions of the automatic kinds, and count the others."""
        valid = await self._read()
        if valid is None:
            return
        known = await self._known(valid)
        new = [action for action in valid if action.action_id not in known]
        chosen = self._chosen(new)
        done = await self._apply(chosen) if chosen else _Run()
        self._passes += 1
        tried = {**self._tried, **dict.fromkeys(done.results, self._passes)}
        self._tried = {a.action_id: tried[a.action_id] for a in new if a.action_id in tried}
        applied = {item for item, text in done.results.items() if text == "applied"}
        self.observer.waiting(item.kind for item in new if item.action_id not in applied)
        self.observer.capped(done.capped)
        before = self._now_ms() - FORGET_AFTER
        await self._router.store.database.write(lambda tx: records.forget(tx, before))
        await self._router.store.database.write(lambda tx: wakes.forget(tx, before))

    def _chosen(self, new: Iterable[Action]) -> list[Action]:
        """Return automatic actions, as many as their pace allows until the next pass.

        Those that were refused or capped before come last: they keep no other from its turn.
        """
        left = {
            kind: max(1, int(self._settings.caps[kind].per_second * self._settings.poll))
            for kind in self._settings.automatic
        }
        chosen = []
        for action in sorted(new, key=lambda item: self._tried.get(item.action_id, 0)):
            if left.get(action.kind, 0) > 0:
                left[action.kind] -= 1
                chosen.append(action)
        return chosen

    async def apply(self, action_ids: Iterable[str]) -> dict[str, str]:
        """Apply chosen actions, and return a word for each: `applied`, or why it was not."""
        wanted = dict.fromkeys(action_ids, UNKNOWN)
        valid = await self._read()
        if valid is None:
            return dict.fromkeys(wanted, "unreadable")
        chosen = [action for action in valid if action.action_id in wanted]
        refused = {item.action_id: item.reason.value for item in self._refused}
        wanted |= {item: refused[item] for item in wanted if item in refused}
        return wanted | (await self._apply(chosen)).results

    async def undo(self, action_id: str) -> str:
        """Undo one action, and return a word for what became of it."""
        store = self._router.store
        known = (await store.read(lambda tx: records.known(tx, [action_id]))).get(action_id)
        if known is None:
            return UNKNOWN
        if known.state is ActionState.UNDONE:
            return "undone_before"
        undone = await store.database.write(partial(self._undo, action_id))
        if undone is None:
            return NOT_REVERSIBLE
        if isinstance(undone, Refusal):
            return undone.value
        await store.load_restrictions()
        self._router.outbox.wake()
        self._follow_effect(known.kind, known.subject, undone)
        await self.record_recovered()
        return "undone"

    async def _read(self) -> list[Action] | None:
        """Return the valid actions of this router; None if the table cannot be read."""
        settings, now = self._settings, int(self._clock() * 1e6)
        self._refused = []
        if settings.place is None:
            return []
        try:
            rows = await asyncio.to_thread(read_actions, settings.place, self._identity.router)
        except StartError as exc:
            self.observer.read_failed()
            logger.log(logging.DEBUG if self._is_failing else logging.ERROR, "%s", exc)
            self._is_failing = True
            return None
        self._is_failing = False
        judged = judge(rows, self._identity.router, settings.signer, now)
        self._refused = judged.refused
        self.observer.refused(judged.refused)
        return judged.actions

    async def _apply(self, chosen: Sequence[Action]) -> _Run:
        """Apply actions of all kinds, each kind at its own pace."""
        run = _Run()
        known = await self._known(chosen)
        run.results = dict.fromkeys(known, Postponed.APPLIED_BEFORE.value)
        chosen = [action for action in chosen if action.action_id not in known]
        entities = await resolve(chosen, Hasher(self._identity.key), self._router.store.read)
        resolved = []
        for action in chosen:
            subject = entities.get((action.kind.subject, action.subject))
            if subject is None:
                self._refuse(run, action.action_id, action.kind, Refusal.UNKNOWN_SUBJECT)
            else:
                item = ResolvedAction.of(action, subject)
                refusal = await self._prepare(action, item)
                if refusal is None:
                    resolved.append(item)
                else:
                    self._refuse(run, action.action_id, action.kind, refusal)
        by_kind: dict[ActionKind, list[ResolvedAction]] = {}
        for item in resolved:
            by_kind.setdefault(item.kind, []).append(item)
        await asyncio.gather(*(self._pace(items, run) for items in by_kind.values()))
        return run

    async def _prepare(self, action: Action, item: ResolvedAction) -> Refusal | None:
        """Store what an action needs before it is applied; return why it is refused."""
        if action.kind is not ActionKind.WAKE_FLEET or self._settings.place is None:
            return None
        hasher = Hasher(self._identity.key)
        return await list_members(
            action, item.evidence, self._settings.place, self._router.store, hasher
        )

    async def _known(self, actions: Iterable[Action]) -> dict[str, KnownAction]:
        ids = [action.action_id for action in actions]
        return await self._router.store.read(lambda tx: records.known(tx, ids))

    async def _pace(self, items: list[ResolvedAction], run: _Run) -> None:
        """Apply actions of one kind, no faster than its cap."""
        caps = {kind: cap.daily for kind, cap in self._settings.caps.items()}
        rate = self._settings.caps[items[0].kind].per_second
        size = max(1, min(BATCH, int(rate)))
        for start in range(0, len(items), size):
            batch = items[start : start + size]
            results = await self._router.store.database.write(partial(self._write, batch, caps))
            for item, result in zip(batch, results, strict=True):
                self._follow(item, result, run)
            await self._router.store.load_restrictions()
            await self.record_recovered()
            number = sum(isinstance(result, Applied) for result in results)
            if number and start + size < len(items):
                await asyncio.sleep(number / rate)

    def _undo(self, action_id: str, tx: Transaction) -> Applied | Refusal | None:
        undone = applying.undo(tx, action_id, self._now_ms())
        if isinstance(undone, Applied):
            self._router.store.coordinator.added(tx, undone.queues)
        return undone

    def _write(self, batch: Sequence[ResolvedAction], caps: Caps, tx: Transaction) -> list[Result]:
        """Apply a batch, and pass queues on to the processes that are to subscribe them."""
        results = applying.apply_batch(tx, batch, caps, self._now_ms())
        queues = [q for item in results if isinstance(item, Applied) for q in item.queues]
        self._router.store.coordinator.added(tx, queues)
        self._router.store.coordinator.take_deleted(tx)
        return results

    def _follow(self, item: ResolvedAction, result: Result, run: _Run) -> None:
        """Do what follows from an action outside of the store."""
        match result:
            case Refusal():
                self._refuse(run, item.action_id, item.kind, result)
            case Postponed():
                run.results[item.action_id] = result.value
                if result is Postponed.CAPPED:
                    run.capped.append(item.kind)
            case Applied():
                run.results[item.action_id] = "applied"
                self._follow_effect(item.kind, item.subject, result)

    def _follow_effect(self, kind: ActionKind, subject: bytes, effect: Applied) -> None:
        if kind.subject == "token":
            self._router.store.forget_tokens([subject])
            self._router.outbox.wake()
        for added in effect.queues:
            found = added.subscription
            queue = QueueKey(found.subscription_id, found.notifier_id, found.notifier_key)
            try:
                self._router.subscribers.resubscribe(
                    added.server, queue, was_active=effect.was_active
                )
            except WireError:
                logger.error("the address of a messaging router cannot be understood")

    def _refuse(self, run: _Run, action_id: str, kind: ActionKind, reason: Refusal) -> None:
        run.results[action_id] = reason.value
        self.observer.refused([Refused(action_id, kind.value, reason)])

    async def _hashed(self, kind: ActionKind, subject: bytes) -> bytes:
        """Return what the journal hashes for a subject: a server is known by its address."""
        if kind.subject != "server":
            return subject
        return await self._router.store.read(lambda tx: address_of(tx, subject))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
