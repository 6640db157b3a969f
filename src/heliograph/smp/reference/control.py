"""The control port of the messaging router, with the reference's commands.

| command | role | |
| --- | --- | --- |
| `auth PASSWORD` | | become a user or an administrator, for this connection |
| `stats` | user | what was counted since the last line of the statistics |
| `stats-rts` | | CPU time, memory and garbage collections of the process |
| `sockets` | user | connections accepted, closed and open |
| `server-info` | user | clients and subscriptions; more of them for administrators |
| `status ID` | user | the status of a queue, by its sender ID or link ID |
| `block ID reason=spam` | user | or `reason=content`; `,notice={"ttl":SECONDS}` may follow |
| `unblock ID` | user | unblock a queue |
| `delete ID` | admin | delete a queue with its messages |
| `clients`, `socket-threads`, `threads` | admin | each client, connection, thread |
| `save` | admin | write what is pending to the store, and the statistics |
| `help`, `quit` | | |
"""

import gc
import resource
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from heliograph.db.errors import DatabaseError
from heliograph.runtime.reference.control import ControlPort, Passwords, Role, is_allowed
from heliograph.smp.reference.statslog import RELAYS, count_services, relay_names
from heliograph.smp.settings import DAY
from heliograph.smp.store.records import QueueRecord, QueueStatus
from heliograph.wire.errors import BLOCKED, WireError, decode_error, encode_error
from heliograph.wire.primitives import b64decode, b64encode

if TYPE_CHECKING:
    from heliograph.smp.metrics import SmpCollector
    from heliograph.smp.reference.statslog import SmpStatsLog
    from heliograph.smp.router import SmpRouter
    from heliograph.transport.server import Listener

__all__ = ["SmpControlPort"]

_QUEUE_STATS = (
    ("qCreated", "queues_created"),
    ("qSecured", "queues_secured"),
    ("qDeletedAll", "queues_deleted"),
    ("qDeletedAllB", "batches.DEL"),
    ("qDeletedNew", "queues_deleted_new"),
)
_SUBSCRIPTION_STATS = (
    ("qSub", "subscribed_pending"),
    ("qSubAllB", "batches.SUB"),
    ("qSubEnd", "subscription_ended"),
    ("qSubEndB", "subscription_ended"),
)
_MESSAGE_STATS = (
    ("msgSent", "messages_sent"),
    ("msgRecv", "messages_received"),
    ("msgRecvGet", "messages_received_by_get"),
)
_NOTIFICATION_STATS = (
    ("msgSentNtf", "messages_notify_sent"),
    ("msgRecvNtf", "messages_received_notified"),
    ("msgNtfs", "notifications_delivered"),
    ("msgNtfsB", "notification_batches"),
    ("msgNtfExpired", "notifications_expired"),
)
_RELAY_LABELS = ("pRelays", "pRelaysOwn", "pMsgFwds", "pMsgFwdsOwn")
_OUTCOMES = ("requests", "successes", "errorsConnect", "errorsCompat", "errorsOther")
_NO_QUEUE = "error: AUTH"

Answer = Callable[[list[str]], Awaitable[list[str]]]


class SmpControlPort(ControlPort):
    title = "SMP server control port"
    help = (
        "commands: auth PASSWORD, stats, stats-rts, clients, sockets, socket-threads, threads,"
        " server-info, status ID, block ID reason=spam|content, unblock ID, delete ID, save, help,"
        " quit"
    )

    def __init__(
        self,
        router: "SmpRouter",
        listener: "Listener",
        port: int,
        stats: "SmpStatsLog",
        collector: "SmpCollector",
        passwords: Passwords,
        daily_blocks: int = 0,
    ) -> None:
        super().__init__(passwords)
        self._router = router
        self._listener = listener
        self._port = port
        self._stats = stats
        self._collector = collector
        self._daily_blocks = daily_blocks
        self._blocked_on: Counter[int] = Counter()
        """How many queues were blocked today, by day."""

    async def answer(self, role: Role, words: list[str]) -> list[str]:
        if words == ["stats-rts"]:
            return list(_process_lines())
        lines: dict[str, tuple[Role, Callable[[Role], Iterator[str]]]] = {
            "stats": (Role.USER, self._stats_lines),
            "sockets": (Role.USER, self._sockets),
            "server-info": (Role.USER, self._server_info),
            "clients": (Role.ADMIN, self._clients),
            "socket-threads": (Role.ADMIN, self._connections_lines),
            "threads": (Role.ADMIN, _threads),
        }
        changes: dict[str, tuple[Role, int, Answer]] = {
            "status": (Role.USER, 1, self._status),
            "block": (Role.USER, 2, self._block),
            "unblock": (Role.USER, 1, self._unblock),
            "delete": (Role.ADMIN, 1, self._delete),
            "save": (Role.ADMIN, 0, self._save),
        }
        command, *arguments = words
        if command in lines and not arguments:
            needed, write = lines[command]
            return list(write(role)) if is_allowed(role, needed, command) else ["AUTH"]
        if command not in changes or len(arguments) != changes[command][1]:
            return self.unknown()
        needed, _, change = changes[command]
        if not is_allowed(role, needed, command):
            return ["AUTH"]
        try:
            return await change(arguments)
        except DatabaseError as exc:
            return [f"error: the store failed: {exc}"]
        except WireError:
            return [f"error: {command} needs an ID in base64url, and block a reason after it"]

    # Queues.

    async def _status(self, arguments: list[str]) -> list[str]:
        queue = await self._find(arguments)
        if queue is None:
            return [_NO_QUEUE]
        mode = "none" if queue.mode is None else queue.mode.name.lower()
        return [f"status: {_describe(queue)}, queueMode: {mode}"]

    async def _block(self, arguments: list[str]) -> list[str]:
        reason = decode_error(b"BLOCKED " + arguments[1].encode())
        queue = await self._find(arguments)
        if queue is None or not isinstance(reason, BLOCKED):
            return [_NO_QUEUE]
        today, limit = int(time.time()) // DAY, self._daily_blocks
        if limit and self._blocked_on[today] >= limit:
            return [f"error: reached limit of {limit} queues blocked daily"]
        was_active = queue.status is QueueStatus.ACTIVE
        if queue.blocked != reason:
            await self._router.operator.block(queue, reason)
        if was_active:
            self._blocked_on = Counter({today: self._blocked_on[today] + 1})
        what = "queue blocked" if was_active else "already inactive"
        return [f"ok, {what}: {_describe(queue)}"]

    async def _unblock(self, arguments: list[str]) -> list[str]:
        queue = await self._find(arguments)
        if queue is None:
            return [_NO_QUEUE]
        if queue.blocked is None:
            is_active = queue.status is QueueStatus.ACTIVE
            return ["ok, queue was active" if is_active else "error, queue is inactive"]
        reason = _reason(queue.blocked)
        await self._router.operator.unblock(queue)
        return [f"ok, queue unblocked, reason to block was: {reason}"]

    async def _delete(self, arguments: list[str]) -> list[str]:
        queue = await self._find(arguments)
        if queue is None:
            return [_NO_QUEUE]
        count = await self._router.operator.delete(queue)
        return [f"ok, {count} messages deleted"]

    async def _find(self, arguments: list[str]) -> QueueRecord | None:
        return await self._router.operator.find(b64decode(arguments[0]))

    async def _save(self, _: list[str]) -> list[str]:
        await self._router.store.drained()
        self._stats.save()
        return ["saving server state...", "server state saved!"]

    # Numbers.

    def _stats_lines(self, role: Role) -> Iterator[str]:
        """Return the reference's lines, in its order."""
        now = time.time()
        self._stats.refresh(now)
        count, totals = self._stats.period(), self._collector.totals
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._stats.since))
        yield f"fromTime: {since}"
        yield from _lines(count, _QUEUE_STATS)
        yield f"qDeletedSecured: {count['queues_deleted'] - count['queues_deleted_new']}"
        yield f"daily active queues: {self._stats.active.all.count('day', now)}"
        yield from _lines(count, _SUBSCRIPTION_STATS)
        yield _others(count, "SUB", "subscribed_again", "subscribe_prohibited")
        yield from _lines(count, _MESSAGE_STATS)
        got = count["messages_get"] - count["messages_get_empty"] - count["messages_get_again"]
        yield f"msgGet: {got}"
        yield f"msgGetNoMsg: {count['messages_get_empty']}"
        yield _others(count, "GET", "messages_get_again", "messages_get_prohibited")
        yield from _lines(count, _NOTIFICATION_STATS)
        for label, value in (
            ("qCount", totals.queues),
            ("qCount 2", totals.queues),
            ("notifiers", totals.notifiers),
            ("msgCount", totals.messages),
            ("ntfCount", totals.notifications),
        ):
            yield f"{label}: {value}"
        for label, relay in zip(_RELAY_LABELS, RELAYS, strict=True):
            outcomes = zip(_OUTCOMES, relay_names(relay), strict=True)
            yield f"{label}: " + ", ".join(f"{what}={count.get(n, 0)}" for what, n in outcomes)
        yield f"pMsgFwdsRecv: {count['forwarded_received']}"
        labels = ("rcvService", "ntfService", "rcvServiceQueues", "ntfServiceQueues")
        services = count_services(self._router.services.values())
        for label, value in zip(labels, services, strict=True):
            yield f"{label}Count: {value}"

    def _sockets(self, _: Role) -> Iterator[str]:
        accepted, active = self._listener.accepted_connections, len(self._listener.connections)
        yield f"Sockets for port {self._port}:"
        yield f"accepted: {accepted}"
        yield f"closed: {accepted - active}"
        yield f"active: {active}"
        yield "leaked: 0"

    def _server_info(self, role: Role) -> Iterator[str]:
        clients, subscribers = self._router.clients, self._router.subscribers
        yield f"Threads: {threading.active_count()}"
        yield f"Clients: {len(clients)}"
        if role is Role.ADMIN:
            subscriptions = [len(c.subscriptions) for c in clients if c.subscriptions]
            notifiers = [len(c.notifiers) for c in clients if c.notifiers]
            for protocol, found in (("SMP", subscriptions), ("Ntf", notifiers)):
                yield f"{protocol} subscriptions (via clients): {sum(found)}"
                yield f"{protocol} subscribed clients (via clients): {len(found)}"
        for protocol, by_queue in (
            ("SMP", subscribers.recipients),
            ("Ntf", subscribers.notifiers),
        ):
            yield f"{protocol} subscriptions: {len(by_queue)}"
            yield f"{protocol} subscribed clients: {len(set(by_queue.values()))}"

    def _clients(self, _: Role) -> Iterator[str]:
        yield "clientId,sessionId,connected,createdAt,rcvActiveAt,sndActiveAt,age,subscriptions"
        now, clock = time.time(), time.monotonic()
        for client in sorted(self._router.clients, key=lambda client: client.number):
            session = client.established.session.session_id
            created = now - (clock - client.connected_at)
            active = now - (clock - client.connection.received_at)
            values = (
                client.number,
                b64encode(session),
                client.is_connected,
                _utc(created),
                _utc(active),
                "",
                int(clock - client.connected_at),
                len(client.subscriptions),
            )
            yield ",".join(map(str, values))

    def _connections_lines(self, _: Role) -> Iterator[str]:
        """Return a line for each connection; all are served by one thread."""
        for number, connection in enumerate(self._listener.connections):
            state = "handshake" if connection.established is None else "connected"
            yield f"{self._port},{number},event loop,{state},"


def _lines(count: Mapping[str, int], labels: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"{label}: {count.get(name, 0)}" for label, name in labels)


def _others(count: Mapping[str, int], command: str, again: str, prohibited: str) -> str:
    events = (count.get(f"refused.{command}", 0), count[again], count[prohibited])
    numbers = ",".join(map(str, events))
    return f"other {command} events (auth, duplicate, prohibited): ({numbers})"


def _process_lines() -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield f"cpu user seconds: {usage.ru_utime:.2f}"
    yield f"cpu system seconds: {usage.ru_stime:.2f}"
    yield f"max resident kilobytes: {usage.ru_maxrss}"
    yield f"garbage collections: {','.join(str(item['collections']) for item in gc.get_stats())}"


def _threads(_: Role) -> Iterator[str]:
    threads = threading.enumerate()
    yield f"Threads: {len(threads)}"
    for thread in threads:
        yield f"{thread.ident} ({'running' if thread.is_alive() else 'ended'}) {thread.name}"


def _describe(queue: QueueRecord) -> str:
    if queue.blocked is not None:
        return f"blocked, {_reason(queue.blocked)}"
    return queue.status.value


def _reason(reason: BLOCKED) -> str:
    return encode_error(reason).decode().removeprefix("BLOCKED ")


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
