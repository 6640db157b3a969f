"""The messaging router as a service: store, listener, journal and metrics, from a configuration."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from heliograph.db.errors import DatabaseError, DatabaseLost
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.journal.opening import open_journal
from heliograph.journal.schema import Part
from heliograph.runtime import expiry
from heliograph.runtime.errors import StartError
from heliograph.runtime.http import HttpServer
from heliograph.runtime.identity import load_identity
from heliograph.runtime.listening import is_wildcard, refused
from heliograph.runtime.metrics import process_registry
from heliograph.runtime.process import raise_file_limit
from heliograph.smp.config import SmpConfig
from heliograph.smp.metrics import SmpCollector
from heliograph.smp.router import SmpRouter, SmpSettings
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress

logger = logging.getLogger(__name__)

SPARE_FILES = 100


@asynccontextmanager
async def serve(config: SmpConfig, directory: Path) -> AsyncIterator[str]:
    """Run a router inside the context, which gives its address once it accepts.

    Stops in the order that loses nothing: first no more commands, then the store.
    """
    identity = load_identity(directory, time.time())
    settings = config.settings(directory)
    limits = config.clients.limits()
    raise_file_limit(limits.max_connections + SPARE_FILES)
    registry = process_registry()
    registry.register(expiry.CertificateCollector("smp", identity))
    router: SmpRouter | None = None
    listening = False

    async def not_ready() -> str | None:
        if router is None or not listening:
            return "starting"
        try:
            await router.store.check()
        except DatabaseError as exc:
            return f"the store fails: {exc}"
        return None

    async with AsyncExitStack() as stack:
        if config.metrics.port is not None:
            http = HttpServer(registry, not_ready)
            port = await http.start(config.metrics.host, config.metrics.port)
            stack.push_async_callback(http.close)
            logger.info("metrics at http://%s:%d/metrics", config.metrics.host, port)
        journal = open_journal(config.journal, directory, Part.SMP)
        if journal is not None:
            stack.callback(journal.close)
        router = await _open(config, directory, settings, journal or NO_JOURNAL)
        stack.push_async_callback(router.close)
        listener = Listener(SMP, identity, router, limits=limits, request_client_certificate=True)
        port = await _listen(listener, config)
        stack.push_async_callback(listener.close)
        listening = True
        stack.push_async_callback(_cancel, asyncio.create_task(expiry.watch(identity)))
        if config.metrics.port is not None:
            collector = SmpCollector(router, listener, port)
            registry.register(collector)
            counting = asyncio.create_task(collector.count())
            stack.push_async_callback(_cancel, counting)
        hosts = config.listen.hosts
        if any(map(is_wildcard, hosts)):
            logger.warning(
                "%s is no address that clients could use: set [listen] host to the name or address"
                ' of this machine, and bind = "*"',
                config.listen.host,
            )
        yield str(ServerAddress(Scheme.SMP, hosts, str(port), identity.fingerprint))
        listening = False


async def _open(
    config: SmpConfig, directory: Path, settings: SmpSettings, journal: Journal
) -> SmpRouter:
    try:
        return await SmpRouter.start(config.store_url(directory), settings, journal)
    except DatabaseLost as exc:
        raise StartError(f"the store cannot be reached: {exc}: see [store] url") from exc
    except DatabaseError as exc:
        raise StartError(f"the store cannot be opened: {exc}") from exc


async def _listen(listener: Listener, config: SmpConfig) -> int:
    bind, port = config.listen.bind_address, config.listen.port
    try:
        return await listener.start(bind, port)
    except OSError as exc:
        raise StartError(refused(exc, bind, port, "[listen]")) from exc


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
