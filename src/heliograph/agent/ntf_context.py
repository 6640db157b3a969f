"""What the workers and the supervisor of notifications share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from heliograph.agent import queues
from heliograph.agent.clients import Clients, is_temporary
from heliograph.agent.keys import Vault
from heliograph.agent.ntf_subscription import Failure, Intervals, QueueFacts
from heliograph.agent.records import RcvQueue, RcvStatus
from heliograph.agent.store import Store
from heliograph.agent.token_machine import Cron
from heliograph.db.dialects import Transaction
from heliograph.runtime.backoff import Backoff
from heliograph.transport.errors import ClientError, RequestRefused, UnexpectedReply
from heliograph.wire.errors import ErrorCode

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class NtfSettings:
    """`batch` is how many commands a worker sends at once, `commands` how many may wait."""

    batch: int = 150
    commands: int = 128
    retry: Backoff = field(default_factory=lambda: Backoff(first=2.0, last=180.0))
    intervals: Intervals = field(default_factory=Intervals)
    cron: Cron = field(default_factory=Cron)
    suspect_after: float = 60.0
    """Seconds from one doubt about the token to the next."""


@dataclass(frozen=True, slots=True)
class NtfContext:
    store: Store
    clients: Clients
    settings: NtfSettings = field(default_factory=NtfSettings)
    clock: Clock = time.time


_USABLE = (RcvStatus.NEW, RcvStatus.SECURING, RcvStatus.ACTIVE)


def notified_queues(tx: Transaction, vault: Vault, conn_ids: Sequence[str]) -> dict[str, RcvQueue]:
    """The queue of each connection that notifications are for: the newest, if it rotates.

    The one that it replaces keeps its credentials and goes on notifying until it is deleted.
    """
    found = queues.rcv_queues_of(tx, vault, conn_ids)
    return {queue.conn_id: queue for queue in found if queue.status in _USABLE}


def facts_of(queue: RcvQueue) -> QueueFacts:
    notifier = queue.notifier
    return QueueFacts(queue.address, None if notifier is None else notifier.notifier_id)


def failure_of(error: Exception) -> Failure:
    """What an error in place of an answer means for a subscription."""
    if isinstance(error, UnexpectedReply) or type(error) is ClientError:
        return Failure.REFUSED  # the same would come again
    if not isinstance(error, RequestRefused):
        return Failure.UNREACHABLE
    if error.error is ErrorCode.AUTH:
        return Failure.AUTH
    return Failure.LATER if is_temporary(error) else Failure.REFUSED
