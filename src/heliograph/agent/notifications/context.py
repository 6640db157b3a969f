"""State and settings that the workers and the supervisor of notifications share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from heliograph.agent.clients import ClientPool, is_temporary
from heliograph.agent.connections import queues
from heliograph.agent.keys import Vault
from heliograph.agent.notifications.records import CronIntervals
from heliograph.agent.notifications.subscription import ActionFailure, Intervals, QueueFacts
from heliograph.agent.records import RcvQueue, RcvStatus
from heliograph.agent.store import AgentStore
from heliograph.db.dialects import Transaction
from heliograph.runtime.backoff import Backoff
from heliograph.transport.errors import ClientError, RequestRefused, UnexpectedReply
from heliograph.wire.errors import ErrorCode

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """`batch` limits the commands that a worker sends at once, `commands` those that wait."""

    batch: int = 150
    commands: int = 128
    retry: Backoff = field(default_factory=lambda: Backoff(first=2.0, last=180.0))
    intervals: Intervals = field(default_factory=Intervals)
    cron: CronIntervals = field(default_factory=CronIntervals)
    suspect_after: float = 60.0
    """Seconds between checks of a token after answers that suggest that it is lost."""
    check_token_after: float = 86_400.0
    """Seconds between routine checks of a token."""
    replace_token_after: float = 3600.0
    """Minimum age in seconds of a token that is replaced because it is invalid or expired."""


@dataclass(frozen=True, slots=True)
class NtfContext:
    store: AgentStore
    clients: ClientPool
    settings: NotificationSettings = field(default_factory=NotificationSettings)
    clock: Clock = time.time


_USABLE = (RcvStatus.NEW, RcvStatus.SECURING, RcvStatus.ACTIVE)


def notified_queues(tx: Transaction, vault: Vault, conn_ids: Sequence[str]) -> dict[str, RcvQueue]:
    """Return the queue of each connection to subscribe for: the newest one, during a rotation.

    The replaced queue keeps its credentials and notifies until it is deleted.
    """
    found = queues.rcv_queues_of(tx, vault, conn_ids)
    return {queue.conn_id: queue for queue in found if queue.status in _USABLE}


def facts_of(queue: RcvQueue) -> QueueFacts:
    notifier = queue.notifier
    return QueueFacts(queue.address, None if notifier is None else notifier.notifier_id)


def failure_of(error: Exception) -> ActionFailure:
    """Classify an error that came in place of an answer."""
    if isinstance(error, UnexpectedReply) or type(error) is ClientError:
        return ActionFailure.REFUSED  # a retry would get the same answer
    if not isinstance(error, RequestRefused):
        return ActionFailure.UNREACHABLE
    if error.error is ErrorCode.AUTH:
        return ActionFailure.AUTH
    return ActionFailure.LATER if is_temporary(error) else ActionFailure.REFUSED
