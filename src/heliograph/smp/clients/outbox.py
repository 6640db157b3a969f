"""The notifications on their way to one client. Pure: the caller reads the store, and sends."""

from collections import deque
from collections.abc import Callable

from heliograph.smp.store.records import StoredNotification

MAX_QUEUED = 20_000
MAX_UNCONFIRMED = 50_000


class NotificationOutbox:
    """Notifications of one client: queued, or sent and not yet confirmed.

    Memory is bounded: once it overflows, all that follows is left in the store, for the caller to
    load when the queue is empty. While a load runs, what is stored meanwhile is held back, so that
    it does not overtake what is older.
    """

    def __init__(self) -> None:
        self.overflowed = False
        self.is_confirming = False
        """The client confirms what it has stored: arrival alone confirms nothing."""
        self._sent = 0
        self._confirmed = 0
        self._progress: tuple[int, float] | None = None
        """What was confirmed when it last grew, and when that was seen."""
        self._queue: deque[StoredNotification] = deque()
        self._known: set[int] = set()
        """The `seq` of what is queued or unconfirmed, so that a load does not repeat it."""
        self._unconfirmed: list[int] = []
        self._bursts: deque[tuple[float | None, int]] = deque()
        """When each burst of the unconfirmed was first seen to have arrived, and its size."""
        self._loads = 0
        self._held: list[StoredNotification] = []
        self._withdrawn: set[bytes] = set()
        """Notifiers withdrawn since a load began."""

    def __len__(self) -> int:
        """Return how many are queued."""
        return len(self._queue)

    @property
    def unconfirmed(self) -> int:
        return len(self._unconfirmed)

    @property
    def is_known_empty(self) -> bool:
        return not self._known

    @property
    def is_loading(self) -> bool:
        return self._loads > 0

    @property
    def is_due(self) -> bool:
        """Whether there is something to send, or to load from the store."""
        return bool(self._queue) or self.overflowed

    @property
    def has_room(self) -> bool:
        """Whether more may be sent before something is confirmed."""
        return len(self._unconfirmed) < MAX_UNCONFIRMED

    @property
    def awaits_arrival(self) -> bool:
        """Whether something was sent and not yet seen to have arrived."""
        return bool(self._bursts) and self._bursts[-1][0] is None

    # In.

    def add(self, notification: StoredNotification) -> None:
        """Add a notification that was just stored."""
        if self._loads == 0:
            self._enqueue(notification)
        elif len(self._held) < MAX_QUEUED:
            self._held.append(notification)
        else:
            self._overflow()

    def begin_load(self) -> None:
        self._loads += 1

    def begin_catch_up(self) -> None:
        """Begin to load what the queue had no room for."""
        self.overflowed = False
        self.begin_load()

    def add_loaded(self, notification: StoredNotification) -> None:
        if notification.notifier_id not in self._withdrawn:
            self._enqueue(notification)

    def end_load(self) -> None:
        self._loads -= 1
        if self._loads:
            return
        self._withdrawn.clear()
        held, self._held = self._held, []
        for notification in held:
            self._enqueue(notification)

    def withdraw(self, notifier_id: bytes) -> None:
        """Drop all notifications of a notifier that is no longer this client's."""
        if self._loads:
            self._withdrawn.add(notifier_id)
            self._held = [item for item in self._held if item.notifier_id != notifier_id]
        if self._queue:
            self._known.difference_update(
                item.seq for item in self._queue if item.notifier_id == notifier_id
            )
            self._queue = deque(item for item in self._queue if item.notifier_id != notifier_id)

    # Out.

    def take(self, limit: int, is_wanted: Callable[[bytes], bool]) -> list[StoredNotification]:
        """Take up to `limit` queued notifications to send, without those of unwanted notifiers."""
        burst = []
        for _ in range(min(limit, len(self._queue))):
            notification = self._queue.popleft()
            if is_wanted(notification.notifier_id):
                burst.append(notification)
            else:
                self._known.discard(notification.seq)
        if burst:
            self._unconfirmed += [notification.seq for notification in burst]
            self._sent += len(burst)
            if not self.is_confirming:
                self._bursts.append((None, len(burst)))
        return burst

    def arrived(self, now: float) -> None:
        """Record that everything sent has arrived, by `now`."""
        self._bursts = deque((now if at is None else at, size) for at, size in self._bursts)

    def confirm(self, count: int) -> None:
        """Record that the client has stored the first `count` of all it was sent."""
        self.is_confirming = True
        self._bursts.clear()
        self._confirmed = max(self._confirmed, min(count, self._sent))

    def is_overdue(self, now: float, timeout: float) -> bool:
        """Return whether the client has confirmed nothing new for `timeout` seconds."""
        confirmed = self._sent - len(self._unconfirmed)
        if not self.is_confirming or not self._unconfirmed:
            self._progress = None
        elif self._progress is None or self._progress[0] != confirmed:
            self._progress = confirmed, now
        return self._progress is not None and now - self._progress[1] > timeout

    def take_confirmed(self, before: float) -> list[int]:
        """Take the `seq` of what is confirmed, to remove it from the store.

        That is what the client confirmed, or, if it never does, what arrived at `before` or
        earlier.
        """
        count = 0
        if self.is_confirming:
            count = max(self._confirmed - (self._sent - len(self._unconfirmed)), 0)
        while self._bursts:
            arrived_at, size = self._bursts[0]
            if arrived_at is None or arrived_at > before:
                break
            count += size
            self._bursts.popleft()
        confirmed, self._unconfirmed = self._unconfirmed[:count], self._unconfirmed[count:]
        return confirmed

    def take_unconfirmed(self) -> list[int]:
        """Take the `seq` of everything sent."""
        self._bursts.clear()
        sent, self._unconfirmed = self._unconfirmed, []
        return sent

    def restore(self, seqs: list[int]) -> None:
        """Put back what was taken as confirmed and could not be removed from the store."""
        self._unconfirmed = seqs + self._unconfirmed
        if not self.is_confirming:
            self._bursts.appendleft((0.0, len(seqs)))

    def removed(self, seqs: list[int]) -> None:
        """Forget what has left the store."""
        self._known.difference_update(seqs)

    # Private.

    def _enqueue(self, notification: StoredNotification) -> None:
        if self.overflowed or notification.seq in self._known:
            return
        if len(self._queue) >= MAX_QUEUED:
            self._overflow()
            return
        self._queue.append(notification)
        self._known.add(notification.seq)

    def _overflow(self) -> None:
        self.overflowed = True
        self._held = []
