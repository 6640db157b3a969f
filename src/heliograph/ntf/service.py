"""The notification router as a service: store, providers, listener, statistics and metrics."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from heliograph.db.database import migrate
from heliograph.db.errors import DatabaseError
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
from heliograph.runtime.errors import StartError
from heliograph.runtime.identity import load_identity
from heliograph.runtime.metrics import process_registry
from heliograph.runtime.process import raise_file_limit
from heliograph.runtime.serving import (
    keep_running,
    listen_at,
    public_address,
    serve_metrics,
    store_error,
)
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme

__all__ = ["UNFINISHED", "maintain", "serve"]

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
        await serve_metrics(stack, config.metrics, registry, not_ready)
        journal = open_journal(config.journal, directory, Part.NTF)
        if journal is not None:
            stack.callback(journal.close)
        router = await _open(config, directory, journal or NO_JOURNAL)
        stats = _stats(config, directory, router)
        stack.callback(_save, stats)
        stack.push_async_callback(router.close)
        listener = Listener(NTF, identity, router, limits=limits)
        port = await listen_at(listener, config.listen)
        stack.push_async_callback(listener.close)
        listening = True
        collector = NtfCollector(
            router, listener, partial(totals.count, config.store_url(directory))
        )
        registry.register(collector)
        keep_running(stack, stats.run())
        keep_running(stack, expiry.watch(identity))
        if config.metrics.port is not None or config.control.port is not None:
            keep_running(stack, collector.count())
        if config.control.port is not None:
            control = ControlPort(router, stats, collector, Passwords(admin, user))
            control_port = await control.start(config.control.port)
            stack.push_async_callback(control.close)
            logger.info("control port %d", control_port)
        yield public_address(Scheme.NTF, config.listen, port, identity.fingerprint)
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
