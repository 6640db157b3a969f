"""A notification router of several worker processes on this machine, and their common endpoints."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from heliograph.db.dialects import sqlite_file
from heliograph.journal.identity import journal_identity
from heliograph.ntf.cluster.supervisor import WorkerProcesses, command_for
from heliograph.ntf.config import NtfConfig
from heliograph.ntf.machine import MachineState, WorkersStatsLog, finish_absorbing
from heliograph.ntf.reference.control import NtfControlPort
from heliograph.ntf.store import totals
from heliograph.runtime.errors import StartError, store_errors
from heliograph.runtime.identity import load_identity
from heliograph.runtime.listening import refused
from heliograph.runtime.reference.control import Passwords
from heliograph.runtime.reference.storelog import UnfinishedImport
from heliograph.tasks import TaskScope
from heliograph.transport.accepting import reserve_port

__all__ = ["require_postgres", "supervise"]

logger = logging.getLogger(__name__)


def require_postgres(config: NtfConfig, directory: Path) -> None:
    """Raise `StartError` if the store is not one that several processes can use."""
    with store_errors():
        is_file = sqlite_file(config.store_url(directory)) is not None
    if is_file:
        raise StartError(
            "SQLite is for one process: set [store] url to a PostgreSQL database, or start without"
            " workers"
        )


@asynccontextmanager
async def supervise(config: NtfConfig, directory: Path, count: int) -> AsyncIterator[str]:
    """Run a router of several processes inside the context; yield its address."""
    UnfinishedImport(directory).refuse("ntf")
    load_identity(directory, time.time())
    journal_identity(directory)
    require_postgres(config, directory)
    finish_absorbing(directory)
    listen = config.listen
    try:
        reserved = reserve_port(listen.bind_address, listen.port)
    except OSError as exc:
        raise StartError(refused(exc, listen.bind_address, listen.port, "[listen]")) from exc
    async with AsyncExitStack() as stack:
        stack.callback(reserved.close)
        if config.metrics.port is not None:
            await _serve_merged(stack, config, directory, count)
        workers = WorkerProcesses(
            command_for(directory, listen.host, reserved.getsockname()[1]), count
        )
        address = await stack.enter_async_context(workers.running())
        await _serve_common(stack, config, directory, workers, count)
        yield address


async def _serve_common(
    stack: AsyncExitStack, config: NtfConfig, directory: Path, workers: WorkerProcesses, count: int
) -> None:
    """Write the statistics, and serve the control port, of all workers."""
    stats = WorkersStatsLog(directory, config.stats, workers.ask, count)
    stats.restore()
    stack.callback(stats.try_save)
    tasks = await stack.enter_async_context(TaskScope())
    tasks.spawn(stats.run(), name="ntf statistics")
    if config.control.port is not None:
        pending = partial(totals.count, config.store_url(directory))
        own_domains = config.subscriptions.own_domains
        source = MachineState(stats, workers.ask, count, pending, own_domains)
        passwords = Passwords(*config.control.passwords_in(directory))
        control = NtfControlPort(source, passwords)
        port = await control.start(config.control.port)
        stack.push_async_callback(control.close)
        logger.info("control port %d", port)


async def _serve_merged(
    stack: AsyncExitStack, config: NtfConfig, directory: Path, count: int
) -> None:
    from heliograph.ntf.cluster.metrics import WorkersHttpServer

    http = WorkersHttpServer(directory, count)
    assert config.metrics.port is not None  # noqa: S101
    port = await http.start(config.metrics.host, config.metrics.port)
    stack.push_async_callback(http.close)
    logger.info("metrics at http://%s:%d/metrics", config.metrics.host, port)
