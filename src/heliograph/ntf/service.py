"""The notification router as a service: store, providers, listener, statistics and metrics."""

import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from heliograph import __version__
from heliograph.actions.pairing import pair_secret
from heliograph.actions.snapshots import export_snapshots
from heliograph.db.database import alone, migrate
from heliograph.db.dialects import check_store
from heliograph.journal.hashing import Hasher
from heliograph.journal.identity import journal_identity
from heliograph.journal.journal import Journal
from heliograph.journal.opening import enter_journal
from heliograph.journal.schema import Part
from heliograph.ntf.actions.opening import make_runner
from heliograph.ntf.actions.snapshots import snapshot_of
from heliograph.ntf.cluster.member import ClusterMember
from heliograph.ntf.cluster.reports import WorkerReports, report
from heliograph.ntf.cluster.supervisor import PORT_FILE, WORKERS, worker_directory
from heliograph.ntf.cluster.tables import Process
from heliograph.ntf.config import NtfConfig
from heliograph.ntf.machine import absorb_workers
from heliograph.ntf.observing.metrics import NtfCollector
from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.providers import make_providers
from heliograph.ntf.reference.control import NtfControlPort, ProcessState
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.ntf.router import NtfRouter
from heliograph.ntf.store import totals
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.runtime import logs
from heliograph.runtime.config.operations import STATS_NAME
from heliograph.runtime.errors import store_errors
from heliograph.runtime.files import write_file
from heliograph.runtime.identity import load_identity
from heliograph.runtime.reference.control import Passwords
from heliograph.runtime.reference.storelog import UnfinishedImport
from heliograph.runtime.serving import public_address, router_service
from heliograph.transport.handshake import ServerIdentity
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme

__all__ = ["maintain", "serve"]

logger = logging.getLogger(__name__)

EXIT_FENCED = 75
"""Exit code of a worker that lost its lease: the supervisor starts it again."""
SPARE_FILES = 2000
"""File descriptors for messaging routers, providers and the store."""


@asynccontextmanager
async def serve(
    config: NtfConfig,
    directory: Path,
    worker: int | None = None,
    reports: WorkerReports | None = None,
) -> AsyncIterator[str]:
    """Run a router inside the context; yield its address once it accepts connections.

    Stops in the order that loses nothing: first no more commands, then pushes, then the store.
    With a `worker` number, it is one of several processes that are the router, and `reports` go to
    its supervisor.
    """
    own = directory
    if worker is not None:
        own = worker_directory(directory, worker)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = _of_worker(config)
    limits = config.clients.limits()
    passwords = Passwords(*config.control.passwords_in(directory))
    files = limits.max_connections + SPARE_FILES
    async with router_service(
        "ntf", directory, config.metrics, files, partial(_record_port, own)
    ) as service:
        stack, registry, identity = service.stack, service.registry, service.identity
        journal = enter_journal(
            stack, config.journal, directory, Part.NTF, is_shared=worker is not None
        )
        router = await _open(config, directory, journal, service.identity, worker)
        stats = _stats(config, own, router.stats)
        if worker is None:
            absorb_workers(stats, directory)
        elif reports is not None:
            reports.start(lambda: report(router, stats))
        stack.callback(stats.try_save)
        stack.push_async_callback(router.close)
        share_of = router.store.coordinator.share_of
        listener = Listener(NTF, identity, router, limits=limits, share_of=share_of)
        check = router.store.database.check
        port, tasks = await service.listen(
            listener, config.listen, check, reuse_port=worker is not None
        )
        if router.member is not None:
            tasks.spawn(_end_if_fenced(router.member), name="lost lease")
        collector = NtfCollector(
            router, listener, partial(totals.count, config.store_url(directory))
        )
        registry.register(collector)
        tasks.spawn(stats.run(), name="ntf statistics")
        folder = config.snapshots.path_in(directory)
        if folder is not None:
            tasks.spawn(_snapshots(config, directory, folder, router), name="snapshots")
        runner = make_runner(config.actions, config.journal, directory, router)
        if runner is not None:
            registry.register(runner.observer)
            tasks.spawn(runner.run(), name="actions")
        if config.metrics.port is not None or config.control.port is not None:
            tasks.spawn(collector.count(), name="ntf totals")
        if config.control.port is not None:
            control = NtfControlPort(ProcessState(router, stats, collector), passwords)
            control_port = await control.start(config.control.port)
            stack.push_async_callback(control.close)
            logger.info("control port %d", control_port)
        yield public_address(Scheme.NTF, config.listen, port, identity.fingerprint)


def _snapshots(
    config: NtfConfig, directory: Path, folder: Path, router: NtfRouter
) -> Coroutine[object, object, None]:
    """Return a coroutine that exports snapshots.

    Raises `IdentityError` if the pair's secret is missing.
    """
    secret = pair_secret(directory / config.snapshots.key_file)
    identity = journal_identity(directory, config.journal.key_epoch)
    take = snapshot_of(router.store, secret, Hasher(identity.key))
    interval = config.snapshots.interval_seconds
    store = router.store
    return export_snapshots(
        folder, identity.router, Part.NTF.value, take, interval, lambda: store.coordinator.is_leader
    )


def maintain(config: NtfConfig, directory: Path) -> None:
    """Migrate the store, restore and save statistics, and check what a start needs."""
    UnfinishedImport(directory).refuse("ntf")
    load_identity(directory, time.time())
    config.control.passwords_in(directory)
    make_providers(config, directory)
    stats = _stats(config, directory, Stats())
    with store_errors():
        url = config.store_url(directory)
        check_store(url)
        with alone(url):
            migrate(url, MIGRATIONS)
    stats.try_save()


def _of_worker(config: NtfConfig) -> NtfConfig:
    """Return the configuration of a worker: its supervisor speaks for all."""
    metrics = config.metrics
    if metrics.port is not None:
        metrics = replace(metrics, host="127.0.0.1", port=0)
    control, stats = replace(config.control, port=None), replace(config.stats, log_file="")
    return replace(config, metrics=metrics, control=control, stats=stats)


def _record_port(directory: Path, port: int) -> None:
    if directory.parent.name == WORKERS:
        write_file(directory / PORT_FILE, f"{port}\n".encode(), 0o600)


async def _end_if_fenced(member: ClusterMember) -> None:
    """End the process at once if it lost its lease: it can write nothing any more."""
    await member.fenced.wait()
    logs.flush()
    os._exit(EXIT_FENCED)


async def _open(
    config: NtfConfig,
    directory: Path,
    journal: Journal,
    identity: ServerIdentity,
    worker: int | None,
) -> NtfRouter:
    router: NtfRouter | None = None

    def share_of(number: int) -> int:
        return number if router is None else router.store.coordinator.share_of(number)

    providers = make_providers(config, directory, None if worker is None else share_of)
    logger.info("push providers: %s", ", ".join(sorted(kind.text for kind in providers)))
    url, settings = config.store_url(directory), config.settings()
    with store_errors():
        if worker is None:
            return await NtfRouter.start(url, providers, settings, journal)
        name = f"{socket.gethostname()}/{os.getpid()}"
        process = Process(name, identity.fingerprint, __version__)
        router = await NtfRouter.join(url, process, providers, settings, journal)
        return router


def _stats(config: NtfConfig, directory: Path, stats_of_run: Stats) -> NtfStatsLog:
    options = config.stats
    stats = NtfStatsLog(
        stats_of_run,
        directory / STATS_NAME,
        options.path_in(directory),
        options.start_seconds,
        options.log_interval_seconds,
    )
    stats.restore()
    return stats
