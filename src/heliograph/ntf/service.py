"""The notification router as a service: store, providers, listener, statistics and metrics."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from heliograph.db.database import migrate
from heliograph.db.errors import DatabaseError, DatabaseLost
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.journal.opening import open_journal
from heliograph.journal.schema import Part
from heliograph.ntf import totals
from heliograph.ntf.config import STATS_NAME, NtfConfig
from heliograph.ntf.control import ControlPort, Passwords
from heliograph.ntf.metrics import NtfCollector
from heliograph.ntf.providers import make_providers
from heliograph.ntf.router import NtfRouter
from heliograph.ntf.schema import MIGRATIONS
from heliograph.ntf.statslog import StatsLog
from heliograph.runtime import expiry
from heliograph.runtime.errors import OperatorError, StartError
from heliograph.runtime.http import HttpServer
from heliograph.runtime.identity import load_identity
from heliograph.runtime.listening import is_wildcard, refused
from heliograph.runtime.metrics import process_registry
from heliograph.runtime.process import raise_file_limit
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress

__all__ = ["UNFINISHED", "maintain", "serve", "store_error"]

logger = logging.getLogger(__name__)

SPARE_FILES = 2000
"""For messaging routers, providers and the store."""

UNFINISHED = "import-unfinished"
"""A file in the directory while an import is under way."""


@asynccontextmanager
async def serve(config: NtfConfig, directory: Path) -> AsyncIterator[str]:
    """Run a router inside the context, which gives its address once it accepts.

    Stops in the order that loses nothing: first no more commands, then pushes, then the store.
    """
    refuse_unfinished(directory)
    identity = load_identity(directory, time.time())
    limits = config.clients.limits()
    admin, user = config.control.passwords_in(directory)
    raise_file_limit(limits.max_connections + SPARE_FILES)
    registry = process_registry()
    registry.register(expiry.CertificateCollector("ntf", identity))
    router: NtfRouter | None = None
    listening = False

    async def not_ready() -> str | None:
        if router is None or not listening:
            return "starting"
        await router.store.load([b""], [])  # of no token, but the store has to look
        return None

    async with AsyncExitStack() as stack:
        if config.metrics.port is not None:
            http = HttpServer(registry, not_ready)
            port = await http.start(config.metrics.host, config.metrics.port)
            stack.push_async_callback(http.close)
            logger.info("metrics at http://%s:%d/metrics", config.metrics.host, port)
        journal = open_journal(config.journal, directory, Part.NTF)
        if journal is not None:
            stack.callback(journal.close)
        router = await _open(config, directory, journal or NO_JOURNAL)
        stats = _stats(config, directory, router)
        stack.callback(_save, stats)
        stack.push_async_callback(router.close)
        listener = Listener(NTF, identity, router, limits=limits)
        port = await _listen(listener, config)
        stack.push_async_callback(listener.close)
        listening = True
        collector = NtfCollector(
            router, listener, partial(totals.count, config.store_url(directory))
        )
        registry.register(collector)
        _run(stack, stats.run())
        _run(stack, expiry.watch(identity))
        if config.metrics.port is not None or config.control.port is not None:
            _run(stack, collector.count())
        if config.control.port is not None:
            control = ControlPort(router, stats, collector, Passwords(admin, user))
            control_port = await control.start(config.control.port)
            stack.push_async_callback(control.close)
            logger.info("control port %d", control_port)
        hosts = config.listen.hosts
        if any(map(is_wildcard, hosts)):
            logger.warning(
                "%s is no address that clients could use: set [listen] host to the name or address"
                ' of this machine, and bind = "*"',
                config.listen.host,
            )
        yield str(ServerAddress(Scheme.NTF, hosts, str(port), identity.fingerprint))
        listening = False


def maintain(config: NtfConfig, directory: Path) -> None:
    """Bring the store up to date, and look at all that a start would need."""
    refuse_unfinished(directory)
    load_identity(directory, time.time())
    config.control.passwords_in(directory)
    make_providers(config, directory)
    try:
        migrate(config.store_url(directory), MIGRATIONS)
    except DatabaseError as exc:
        raise store_error(exc) from exc


def refuse_unfinished(directory: Path) -> None:
    if (directory / UNFINISHED).exists():
        raise StartError(
            f"{directory / UNFINISHED}: an import was interrupted, and the store has only a part"
            " of it: run `heliograph ntf import` again; nothing will be there twice"
        )


def store_error(exc: DatabaseError) -> OperatorError:
    if isinstance(exc, DatabaseLost):
        return StartError(f"the store cannot be reached: {exc}: see [store] url")
    return StartError(f"the store cannot be opened: {exc}")


async def _open(config: NtfConfig, directory: Path, journal: Journal) -> NtfRouter:
    providers = make_providers(config, directory)
    logger.info("push providers: %s", ", ".join(sorted(kind.text for kind in providers)))
    try:
        return await NtfRouter.start(
            config.store_url(directory), providers, config.settings(), journal
        )
    except DatabaseError as exc:
        raise store_error(exc) from exc


def _stats(config: NtfConfig, directory: Path, router: NtfRouter) -> StatsLog:
    options = config.stats
    stats = StatsLog(
        router.stats,
        directory / STATS_NAME,
        options.path_in(directory),
        options.start_seconds,
        options.log_interval_seconds,
    )
    stats.restore()
    return stats


def _save(stats: StatsLog) -> None:
    try:
        stats.save()
    except OSError as exc:
        logger.error("the statistics cannot be saved: %s", exc.strerror)


async def _listen(listener: Listener, config: NtfConfig) -> int:
    bind, port = config.listen.bind_address, config.listen.port
    try:
        return await listener.start(bind, port)
    except OSError as exc:
        raise StartError(refused(exc, bind, port, "[listen]")) from exc


def _run(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    stack.push_async_callback(_cancel, asyncio.create_task(work))


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
