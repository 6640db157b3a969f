"""The control port: an operator on this machine asks, in the reference's words, how things are.

    auth PASSWORD    become a user or an administrator, for this connection
    stats            what was counted since the last line of the statistics
    server-info      messaging routers, subscriptions and what is owed; names for administrators
    help, quit

It changes nothing, and tells nothing of any client. It listens on the loopback only.
"""

import asyncio
import contextlib
import hmac
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from heliograph.ntf.live import Live, Servers, Subscriptions
from heliograph.runtime.errors import StartError
from heliograph.runtime.listening import refused

if TYPE_CHECKING:
    from heliograph.ntf.metrics import NtfCollector
    from heliograph.ntf.router import NtfRouter
    from heliograph.ntf.statslog import StatsLog

__all__ = ["ControlPort", "Role"]

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_LINE = 1024
MAX_CONNECTIONS = 16
IDLE_TIMEOUT = 600.0
WRONG_PASSWORD_DELAY = 1.0

GREETING = ("Ntf server control port", "'help' for supported commands")
HELP = "commands: auth PASSWORD, stats, server-info, help, quit"

_STATS = (
    ("tknCreated", "tkn_created"),
    ("tknVerified", "tkn_verified"),
    ("tknDeleted", "tkn_deleted"),
    ("tknReplaced", "tkn_replaced"),
    ("subCreated", "sub_created"),
    ("subDeleted", "sub_deleted"),
    ("ntfReceived", "ntf_received"),
    ("ntfReceivedAuth", "ntf_received_auth"),
    ("ntfDelivered", "ntf_delivered"),
    ("ntfFailed", "ntf_failed"),
    ("ntfRetried", "ntf_retried"),
    ("ntfExpired", "ntf_expired"),
    ("ntfCronDelivered", "ntf_cron_delivered"),
    ("ntfCronFailed", "ntf_cron_failed"),
    ("ntfVrfQueued", "ntf_vrf_queued"),
    ("ntfVrfDelivered", "ntf_vrf_delivered"),
    ("ntfVrfFailed", "ntf_vrf_failed"),
    ("ntfVrfInvalidTkn", "ntf_vrf_invalid_tkn"),
)


class Role(Enum):
    """The value is what the reference calls it."""

    NONE = "CPRNone"
    USER = "CPRUser"
    ADMIN = "CPRAdmin"


@dataclass(frozen=True, slots=True)
class Passwords:
    """None lets nobody in."""

    admin: bytes | None = field(default=None, repr=False)
    user: bytes | None = field(default=None, repr=False)

    def role(self, password: bytes) -> Role:
        for known, role in ((self.admin, Role.ADMIN), (self.user, Role.USER)):
            if known is not None and hmac.compare_digest(known, password):
                return role
        return Role.NONE


class ControlPort:
    def __init__(
        self,
        router: "NtfRouter",
        stats: "StatsLog",
        collector: "NtfCollector",
        passwords: Passwords,
    ) -> None:
        self._router = router
        self._stats = stats
        self._collector = collector
        self._passwords = passwords
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> int:
        """Listen; the result is the port, which matters if it was given as 0."""
        try:
            self._server = await asyncio.start_server(
                self._connected, HOST, port, limit=MAX_LINE, start_serving=True
            )
        except OSError as exc:
            raise StartError(refused(exc, HOST, port, "[control]")) from exc
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        role = Role.NONE
        lines = list(GREETING)
        while True:
            writer.write("".join(f"{line}\n" for line in lines).encode())
            await writer.drain()
            async with asyncio.timeout(IDLE_TIMEOUT):
                received = await reader.readline()
            words = received.decode("utf-8", "replace").split()
            if not received or words == ["quit"]:
                return
            if words[:1] == ["auth"]:
                role, lines = await self._authenticate(role, words)
            else:
                lines = self._answer(role, words)

    async def _authenticate(self, role: Role, words: list[str]) -> tuple[Role, list[str]]:
        if len(words) != 2:
            return role, ["error: auth needs a password"]
        wanted = self._passwords.role(words[1].encode())
        if wanted is Role.NONE:
            logger.warning("control port: a wrong password")
            await asyncio.sleep(WRONG_PASSWORD_DELAY)
        if role is Role.NONE:
            return wanted, [f"Current role is {wanted.value}"]
        change = "" if role is wanted else ", start new session to change."
        return role, [f"Current role is {role.value}{change}"]

    def _answer(self, role: Role, words: list[str]) -> list[str]:
        questions: dict[str, Callable[[Role], Iterator[str]]] = {
            "stats": self._stats_lines,
            "server-info": self._server_info,
        }
        match words:
            case []:
                return []
            case ["help"]:
                return [HELP]
            case [word] if word in questions:
                if role is Role.NONE:
                    logger.warning("control port: %s without a password", word)
                    return ["AUTH"]
                logger.info("control port: %s", word)
                return list(questions[word](role))
        return [f"error: no such command; {HELP}"]

    def _stats_lines(self, _: Role) -> Iterator[str]:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._stats.since))
        yield f"fromTime: {since}"
        counted = self._stats.period()
        for label, name in _STATS:
            yield f"{label}: {counted[name]}"
        stats, now = self._router.stats, time.time()
        yield f"daily active tokens: {stats.active_tokens.count('day', now)}"
        yield f"daily active subscriptions: {stats.active_subs.count('day', now)}"

    def _server_info(self, role: Role) -> Iterator[str]:
        live: Live = self._collector.live()
        names = role is Role.ADMIN
        yield f"Threads: {threading.active_count()}"
        yield f"Clients: {len(self._router.clients)}"
        for title, servers in (
            ("SMP subscribers", live.subscribers),
            ("SMP clients", live.connected),
            ("SMP subscription workers", live.waiting),
        ):
            yield from _servers(title, servers, names)
        yield f"SMP sessions count: {live.sessions}"
        for title, found in (
            ("SMP service subscriptions", live.active_service),
            ("SMP queue subscriptions", live.active),
            ("Pending SMP service subscriptions", live.pending_service),
            ("Pending SMP queue subscriptions", live.pending),
        ):
            yield from _subscriptions(title, found, names)
        totals = self._collector.totals
        yield f"Pushes under way: {self._router.outbox.under_way}"
        if totals is not None:
            yield f"Push notifications queue length: {sum(totals.debts.values())}"
            if totals.oldest_debt is not None:
                yield f"Oldest push owed for: {max(time.time() - totals.oldest_debt, 0):.0f} s"


def _servers(title: str, servers: Servers, names: bool) -> Iterator[str]:
    yield f"{title} own servers count: {len(servers.own)}"
    if names:
        yield f"{title} own servers: {','.join(servers.own)}"
    yield f"{title} other servers count: {servers.other}"


def _subscriptions(title: str, found: Subscriptions, names: bool) -> Iterator[str]:
    yield from _servers(title, Servers(sorted(found.own), found.other_servers), names)
    yield f"{title} total: {found.total}"
    yield f"{title} on own servers: {sum(found.own.values())}"
    if names:
        for host, number in sorted(found.own.items()):
            yield f"{title} on {host}: {number}"
    yield f"{title} on other servers: {found.other}"
