"""Observation of the messaging router: counters for metrics, and events for the journal.

Nonces are passed unhashed; the journal writes only hashes of them. See `heliograph.journal.schema`.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from heliograph.db.errors import DatabaseError
from heliograph.journal.events import (
    NotificationDeliveredColumns,
    NotificationExpired,
    NotificationRemoved,
    NotificationStored,
    NotificationStoredColumns,
    RouterRecovered,
    RouterStarted,
)
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.journal.observer import RouterObserver
from heliograph.runtime.reference.periods import ActiveIds
from heliograph.smp.counters import RelayOutcome, ServiceEvent, SmpCounters
from heliograph.smp.store.records import StoredNotification
from heliograph.smp.store.store import SmpStore
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpCommand

logger = logging.getLogger(__name__)

COUNTS_INTERVAL = 60.0
NOTIFICATIONS_PER_PAGE = 1_000
RETRY_DELAY = 1.0
MAX_BACKLOG = 10_000
"""Queued journal events above which the report of recovered notifications pauses."""


class ActiveQueues:
    """Queues used by day, week and month: all, and those with notifications.

    IDs are collected, and counted by `refresh` once a minute, because messages are many.
    """

    def __init__(self) -> None:
        self.all = ActiveIds()
        self.notified = ActiveIds()
        self._all: set[bytes] = set()
        self._notified: set[bytes] = set()

    def add(self, recipient_id: bytes, *, notified: bool) -> None:
        self._all.add(recipient_id)
        if notified:
            self._notified.add(recipient_id)

    def refresh(self, now: float) -> None:
        for ids, found in ((self.all, self._all), (self.notified, self._notified)):
            ids.add(found, now)
            found.clear()


class SmpObserver(RouterObserver[SmpCommand]):
    """The one place that learns what the router does."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.counters = SmpCounters()
        self._stored: list[bytes] = []
        """Nonces of the notifications that the last commit made durable."""
        self.active: ActiveQueues | None = None
        """The queues that were used, if statistics of them are wanted."""

    def started(self) -> None:
        self.journal.record(RouterStarted())

    def commanded(self, requests: Sequence[Request[SmpCommand]]) -> None:
        super().commanded(requests)
        if len(requests) > 1:
            self.counters.batches[type(requests[0].command).__name__] += 1

    # Queues.

    def queue_created(self, *, with_notifier: bool) -> None:
        self.counters.queues_created += 1
        if with_notifier:
            self.counters.notifiers_created += 1
            self.counters.notifiers_created_with_queue += 1

    def queue_secured(self) -> None:
        self.counters.queues_secured += 1

    def queue_deleted(self, *, secured: bool) -> None:
        self.counters.queues_deleted += 1
        if not secured:
            self.counters.queues_deleted_new += 1

    def queue_blocked(self) -> None:
        self.counters.queues_blocked += 1

    def queue_subscribed(self, *, again: bool, pending: bool) -> None:
        self.counters.subscribed += 1
        if again:
            self.counters.subscribed_again += 1
        elif pending:
            self.counters.subscribed_pending += 1

    def subscribe_prohibited(self) -> None:
        self.counters.subscribe_prohibited += 1

    def subscription_ended(self) -> None:
        self.counters.subscription_ended += 1

    # Messages.

    def message_sent(self, recipient_id: bytes, *, notified: bool) -> None:
        self.counters.messages_sent += 1
        if notified:
            self.counters.messages_notify_sent += 1
        if self.active is not None:
            self.active.add(recipient_id, notified=notified)

    def message_too_large(self) -> None:
        self.counters.messages_large += 1

    def quota_exceeded(self) -> None:
        self.counters.messages_quota += 1

    def message_requested(self, *, empty: bool, again: bool) -> None:
        self.counters.messages_get += 1
        if empty:
            self.counters.messages_get_empty += 1
        elif again:
            self.counters.messages_get_again += 1

    def get_prohibited(self) -> None:
        self.counters.messages_get_prohibited += 1

    def message_received(self, recipient_id: bytes, *, notified: bool, by_get: bool) -> None:
        self.counters.messages_received += 1
        if notified:
            self.counters.messages_received_notified += 1
        if by_get:
            self.counters.messages_received_by_get += 1
        if self.active is not None:
            self.active.add(recipient_id, notified=notified)

    def messages_expired(self, count: int) -> None:
        self.counters.messages_expired += count

    # Notifications.

    def notifier_created(self) -> None:
        self.counters.notifiers_created += 1

    def notifier_deleted(self) -> None:
        self.counters.notifiers_deleted += 1

    def notifier_subscribed(self, *, again: bool) -> None:
        self.counters.notifier_subscribed += 1
        if again:
            self.counters.notifier_subscribed_again += 1

    def service_changed(self, role: ServiceRole, event: ServiceEvent, count: int = 1) -> None:
        self.counters.services[role][event] += count

    def notification_stored(self, notification: StoredNotification) -> None:
        """Take a durable notification, for `commit_settled` to record with the others."""
        self._stored.append(notification.nonce)

    def commit_settled(self) -> None:
        """Record the stored notifications of a commit, all at once."""
        if self._stored:
            stored, self._stored = self._stored, []
            self.journal.record_columns(NotificationStoredColumns(notification=stored))

    def notifications_delivered(self, notifications: Sequence[StoredNotification]) -> None:
        self.counters.notifications_delivered += len(notifications)
        self.counters.notification_batches += 1
        nonces = [notification.nonce for notification in notifications]
        self.journal.record_columns(NotificationDeliveredColumns(notification=nonces))

    def delivery_unconfirmed(self, count: int) -> None:
        """Record that a client disconnected before `count` notifications were confirmed."""
        self.counters.notifications_redelivered += count

    def notifications_removed(self, nonces: Iterable[bytes]) -> None:
        self.commit_settled()  # some may have been stored by the same commit
        for nonce in nonces:
            self.journal.record(NotificationRemoved(notification=nonce))

    def notifications_expired(self, nonces: Iterable[bytes]) -> None:
        for nonce in nonces:
            self.counters.notifications_expired += 1
            self.journal.record(NotificationExpired(notification=nonce))

    def notification_recovered(self, nonce: bytes) -> None:
        self.journal.record(NotificationStored(notification=nonce, reason="recovered"))

    def recovered(self, count: int) -> None:
        self.journal.record(RouterRecovered(count=count))

    # Private routing.

    def forwarded_command_received(self) -> None:
        self.counters.forwarded_received += 1

    def relay_requested(self, outcome: RelayOutcome, *, own: bool) -> None:
        self.counters.relay_sessions.add(outcome, own)

    def command_relayed(self, outcome: RelayOutcome, *, own: bool) -> None:
        self.counters.relay_commands.add(outcome, own)

    # Limits.

    def throttled(self) -> None:
        """Record that commands of a connection wait, because it sent too many."""
        self.counters.throttled += 1

    def queue_refused(self) -> None:
        """Record that an address created too many queues."""
        self.counters.queues_refused += 1

    # Failures.

    def command_refused(self, command: SmpCommand) -> None:
        self.counters.auth_errors += 1
        self.counters.refused[type(command).__name__] += 1

    def store_failed(self) -> None:
        self.counters.store_failures += 1

    async def report_counts(self) -> None:
        """Journal the counts of commands and connections every minute until cancelled."""
        while self.journal is not NO_JOURNAL:
            await asyncio.sleep(COUNTS_INTERVAL)
            self.record_counts()


async def report_recovered(observer: SmpObserver, store: SmpStore, before: int) -> None:
    """Journal the notifications stored by earlier runs, those with a `seq` below `before`.

    The last events of a killed router may be lost: what is not reported here has left the store.
    """
    if observer.journal is NO_JOURNAL:
        return
    count, after = 0, -1
    while True:
        try:
            page = await store.stored_nonces(after, before, NOTIFICATIONS_PER_PAGE)
        except DatabaseError as exc:
            logger.error("cannot read stored notifications, retrying: %s", exc)
            await asyncio.sleep(RETRY_DELAY)
            continue
        for _, nonce in page:
            observer.notification_recovered(nonce)
        count += len(page)
        if len(page) < NOTIFICATIONS_PER_PAGE:
            break
        after = page[-1][0]
        await observer.journal.drained(MAX_BACKLOG)
    observer.recovered(count)
