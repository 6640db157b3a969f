"""NtfSubSupervisor: turns commands about connections into stored actions, and wakes the workers.

Commands wait in a bounded queue; `submit` waits while it is full. Creates are accepted only with an
active token in instant mode: activation creates whatever is missing. Deletions need no token.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from heliograph.agent.connections import queues
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.context import NtfContext, facts_of, notified_queues
from heliograph.agent.notifications.key_work import KeyWork
from heliograph.agent.notifications.records import (
    CommandKind,
    NtfSubscription,
    SubAction,
    SupervisorCommand,
)
from heliograph.agent.notifications.subscription import Decision, at, begin, decide, delete, forget
from heliograph.agent.notifications.subscription_work import SubscriptionWork
from heliograph.agent.notifications.tokens.deletion import TokenDeletion
from heliograph.agent.notifications.workers import Perform, Worker
from heliograph.db.dialects import Transaction
from heliograph.tasks import TaskScope
from heliograph.wire.addresses import ServerAddress

logger = logging.getLogger(__name__)

_AT_SMP = tuple(action for action in SubAction if action.at_smp)
_AT_NTF = tuple(action for action in SubAction if not action.at_smp)
RETRY_COMMAND = (0.5, 2.0, 10.0)


@dataclass(slots=True)
class Woken:
    """Routers whose workers have work."""

    smp: set[ServerAddress] = field(default_factory=set)
    ntf: set[ServerAddress] = field(default_factory=set)

    def add(self, sub: NtfSubscription) -> None:
        if sub.action is None:
            return
        if sub.action.at_smp:
            self.smp.add(sub.smp_address)
        else:
            self.ntf.add(sub.ntf_address)


class NtfSubSupervisor:
    def __init__(self, context: NtfContext, suspect: Callable[[], None]) -> None:
        """`suspect` is called when a router's answer means that the token may be lost."""
        self._context = context
        self._suspect = suspect
        self._commands: asyncio.Queue[SupervisorCommand] = asyncio.Queue(context.settings.commands)
        self._smp: dict[ServerAddress, Worker] = {}
        self._ntf: dict[ServerAddress, Worker] = {}
        self._deletions: dict[ServerAddress, Worker] = {}
        self._tasks = TaskScope()
        self._is_started = False

    async def start(self) -> None:
        """Resume stored work."""
        self._is_started = True
        self._tasks.spawn(self._run(), name="ntf supervisor")
        await self.wake_pending()

    async def wake_pending(self) -> None:
        """Wake the workers of every router with stored work."""
        if not self._is_started:
            return
        woken, deletions = await self._context.store.read(_pending)
        self._wake(woken)
        for address in deletions:
            self.delete_tokens_at(address)

    async def stop(self) -> None:
        await self._tasks.close()
        workers = (*self._smp.values(), *self._ntf.values(), *self._deletions.values())
        await asyncio.gather(*[worker.stop() for worker in workers])
        for pool in (self._smp, self._ntf, self._deletions):
            pool.clear()

    async def submit(self, command: SupervisorCommand) -> bool:
        """Queue a command, and return whether it was accepted. Waits while the queue is full.

        Before `start` it becomes stored actions at once, which `start` continues.
        """
        if not command.conn_ids:
            return False
        if command.kind is CommandKind.CREATE and not await self._is_instant():
            return False
        if not self._is_started:
            await self._context.store.write(lambda tx: self._process(tx, command))
        else:
            await self._commands.put(command)
        return True

    async def commands_stored(self) -> None:
        """Wait until all commands became stored actions."""
        await self._commands.join()

    def drop_creates(self) -> None:
        """Drop queued creates, after a change of the mode."""
        kept: list[SupervisorCommand] = []
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                kept.append(self._commands.get_nowait())
                self._commands.task_done()
        for command in kept:
            if command.kind is not CommandKind.CREATE:
                self._commands.put_nowait(command)

    async def create_all(self) -> None:
        """Create for every connection with notifications on, and delete all other subscriptions."""
        create, unwanted, orphans = await self._context.store.read(_reconcile)
        await self.submit(SupervisorCommand(CommandKind.CREATE, create))
        await self.submit(SupervisorCommand(CommandKind.DELETE, unwanted))
        await self.submit(SupervisorCommand(CommandKind.FORGET, orphans))

    async def delete_all(self) -> None:
        """Delete all subscriptions."""
        self.drop_creates()
        subs = await self._context.store.read(ntf_store.all_subscriptions)
        pending = tuple(sub.conn_id for sub in subs if not _is_deleting(sub))
        await self.submit(SupervisorCommand(CommandKind.DELETE, pending))

    def delete_tokens_at(self, address: ServerAddress) -> None:
        work = TokenDeletion(self._context, address)
        self._worker(self._deletions, address, "token deletion", work.perform)

    def wake_all(self) -> None:
        """Wake all workers: the token or its mode has changed."""
        for pool in (self._smp, self._ntf):
            for worker in pool.values():
                worker.wake()

    def retry_now(self) -> None:
        """Retry at once, because the network is back."""
        for pool in (self._smp, self._ntf, self._deletions):
            for worker in pool.values():
                worker.retry_now()

    # Commands.

    async def _run(self) -> None:
        while True:
            command = await self._commands.get()
            try:
                await self._persist(command)
            finally:
                self._commands.task_done()

    async def _persist(self, command: SupervisorCommand) -> None:
        """Process a command with retries. One that keeps failing must not block those after it."""
        for wait in (*RETRY_COMMAND, None):
            if await self._attempt(command):
                return
            if wait is not None:
                await asyncio.sleep(wait)
        logger.error("giving up a command about subscriptions until the next start")

    async def _attempt(self, command: SupervisorCommand) -> bool:
        try:
            woken = await self._context.store.write(lambda tx: self._process(tx, command))
        except Exception:
            logger.exception("a command about subscriptions failed")
            return False
        self._wake(woken)
        return True

    def _process(self, tx: Transaction, command: SupervisorCommand) -> Woken:
        """Store the actions of a command in one transaction, as another process may do so too."""
        match command.kind:
            case CommandKind.CREATE:
                return self._create(tx, command.conn_ids)
            case CommandKind.DELETE:
                return self._delete(tx, command.conn_ids)
            case CommandKind.FORGET:
                return self._forget(tx, command.conn_ids)

    def _create(self, tx: Transaction, conn_ids: Sequence[str]) -> Woken:
        vault = self._context.store.vault
        woken = Woken()
        token = ntf_store.load_token(tx, vault)
        if token is None or not token.is_instant:
            return woken
        subs = ntf_store.find_subscriptions(tx, conn_ids)
        changed: list[NtfSubscription] = []
        for conn_id, queue in notified_queues(tx, vault, conn_ids).items():
            sub, facts = subs.get(conn_id), facts_of(queue)
            match decide(facts, sub, token):
                case Decision.NEW | Decision.RESET:
                    sub = begin(conn_id, facts, sub, token)
                    changed.append(sub)
                case Decision.CONTINUE_SMP | Decision.CONTINUE_NTF if sub is not None:
                    here = at(sub, token)
                    if here is not sub:
                        changed.append(here)
                    sub = here
            if sub is not None:
                woken.add(sub)
        ntf_store.put_subscriptions(tx, changed)
        return woken

    def _delete(self, tx: Transaction, conn_ids: Sequence[str]) -> Woken:
        found = notified_queues(tx, self._context.store.vault, conn_ids)
        subs = ntf_store.find_subscriptions(tx, conn_ids)
        facts = {conn_id: facts_of(queue) for conn_id, queue in found.items()}
        return _put(
            tx,
            [
                sub if _is_deleting(sub) else delete(sub, facts.get(conn_id))
                for conn_id, sub in subs.items()
            ],
        )

    def _forget(self, tx: Transaction, conn_ids: Sequence[str]) -> Woken:
        token = ntf_store.load_token(tx, self._context.store.vault)
        subs = ntf_store.find_subscriptions(tx, conn_ids)
        results = {conn_id: forget(sub, token) for conn_id, sub in subs.items()}
        ntf_store.remove_subscriptions(tx, [key for key, sub in results.items() if sub is None])
        return _put(tx, [sub for sub in results.values() if sub is not None])

    async def _is_instant(self) -> bool:
        vault = self._context.store.vault
        token = await self._context.store.read(lambda tx: ntf_store.load_token(tx, vault))
        return token is not None and token.is_instant

    # Workers.

    def _wake(self, woken: Woken) -> None:
        for address in woken.smp:
            self._wake_smp(address)
        for address in woken.ntf:
            self._wake_ntf(address)

    def _wake_smp(self, address: ServerAddress) -> None:
        work = KeyWork(self._context, address, self._wake_ntf)
        self._worker(self._smp, address, "notifier keys", work.perform)

    def _wake_ntf(self, address: ServerAddress) -> None:
        work = SubscriptionWork(self._context, address, self._wake_smp, self._suspect)
        self._worker(self._ntf, address, "notification subscriptions", work.perform)

    def _worker(
        self, pool: dict[ServerAddress, Worker], address: ServerAddress, name: str, perform: Perform
    ) -> None:
        """Wake the worker of a router; start it if there is none."""
        worker = pool.get(address)
        if worker is not None:
            worker.wake()
        elif self._is_started:
            settings = self._context.settings
            pool[address] = Worker(name, perform, settings.batch, settings.retry)


def _put(tx: Transaction, subs: Iterable[NtfSubscription]) -> Woken:
    woken = Woken()
    changed = list(subs)
    for sub in changed:
        woken.add(sub)
    ntf_store.put_subscriptions(tx, changed)
    return woken


def _is_deleting(sub: NtfSubscription) -> bool:
    return sub.action is not None and sub.action.is_delete


def _pending(tx: Transaction) -> tuple[Woken, list[ServerAddress]]:
    woken = Woken(
        set(ntf_store.routers_with_work(tx, "smp", _AT_SMP)),
        set(ntf_store.routers_with_work(tx, "ntf", _AT_NTF)),
    )
    return woken, ntf_store.routers_to_delete_at(tx)


def _reconcile(
    tx: Transaction,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return connections to create for, those with notifications off, and deleted ones."""
    known = {item.conn_id: item.enable_ntfs for item in queues.connections(tx)}
    subs = [sub for sub in ntf_store.all_subscriptions(tx) if not _is_deleting(sub)]
    return (
        tuple(conn_id for conn_id, enabled in known.items() if enabled),
        tuple(sub.conn_id for sub in subs if known.get(sub.conn_id) is False),
        tuple(sub.conn_id for sub in subs if sub.conn_id not in known),
    )
