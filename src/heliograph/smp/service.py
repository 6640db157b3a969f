"""The messaging router as a service: store, listener, journal and metrics, from a configuration."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from heliograph.actions.pairing import pair_secret
from heliograph.actions.snapshots import export_snapshots
from heliograph.journal.identity import journal_identity
from heliograph.journal.opening import enter_journal
from heliograph.journal.schema import Part
from heliograph.runtime.config.operations import STATS_NAME
from heliograph.runtime.errors import store_errors
from heliograph.runtime.reference.control import Passwords
from heliograph.runtime.serving import public_address, router_service
from heliograph.smp.config import SmpConfig
from heliograph.smp.metrics import SmpCollector
from heliograph.smp.reference.control import SmpControlPort
from heliograph.smp.reference.statslog import SmpStatsLog
from heliograph.smp.router import SmpRouter
from heliograph.smp.snapshots import snapshot_of
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme

logger = logging.getLogger(__name__)

SPARE_FILES = 100


@asynccontextmanager
async def serve(config: SmpConfig, directory: Path) -> AsyncIterator[str]:
    """Run a router inside the context; the value is its address, once it accepts connections.

    At the end it first stops accepting commands, then closes the store, so nothing is lost.
    """
    settings = config.settings(directory)
    limits = config.clients.limits()
    passwords = Passwords(*config.control.passwords_in(directory))
    files = limits.max_connections + SPARE_FILES
    async with router_service("smp", directory, config.metrics, files) as service:
        stack, registry, identity = service.stack, service.registry, service.identity
        journal = enter_journal(stack, config.journal, directory, Part.SMP)
        with store_errors():
            router = await SmpRouter.start(config.store_url(directory), settings, journal)
        stack.push_async_callback(router.close)
        listener = Listener(SMP, identity, router, limits=limits, request_client_certificate=True)
        port, tasks = await service.listen(listener, config.listen, router.store.check)
        collector = SmpCollector(router, listener, port)
        registry.register(collector)
        options, control = config.stats, config.control
        if config.metrics.port is not None or options.log_file or control.port is not None:
            tasks.spawn(collector.count(), name="smp totals")
        if options.log_file or control.port is not None:
            stats = SmpStatsLog(
                router.observer,
                router.services,
                lambda: collector.totals,
                directory / STATS_NAME,
                options.path_in(directory),
                options.start_seconds,
                options.log_interval_seconds,
            )
            stats.restore()
            stack.callback(stats.try_save)
            tasks.spawn(stats.run(), name="smp statistics")
        folder = config.snapshots.path_in(directory)
        if folder is not None:
            secret = pair_secret(directory / config.snapshots.key_file)
            name = journal_identity(directory, config.journal.key_epoch).router
            take = snapshot_of(router.store, router.subscribers, secret, identity.fingerprint)
            interval = config.snapshots.interval_seconds
            exporting = export_snapshots(folder, name, Part.SMP.value, take, interval)
            tasks.spawn(exporting, name="snapshots")
        if control.port is not None:
            server = SmpControlPort(
                router, listener, port, stats, collector, passwords, control.daily_blocks
            )
            logger.info("control port %d", await server.start(control.port))
            stack.push_async_callback(server.close)
        yield public_address(Scheme.SMP, config.listen, port, identity.fingerprint)
