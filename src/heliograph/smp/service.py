"""The messaging router as a service: store, listener, journal and metrics, from a configuration."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from heliograph.db.errors import DatabaseError
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.journal.opening import open_journal
from heliograph.journal.schema import Part
from heliograph.runtime import expiry
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
from heliograph.smp.config import SmpConfig
from heliograph.smp.metrics import SmpCollector
from heliograph.smp.router import SmpRouter, SmpSettings
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme

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
        await serve_metrics(stack, config.metrics, registry, not_ready)
        journal = open_journal(config.journal, directory, Part.SMP)
        if journal is not None:
            stack.callback(journal.close)
        router = await _open(config, directory, settings, journal or NO_JOURNAL)
        stack.push_async_callback(router.close)
        listener = Listener(SMP, identity, router, limits=limits, request_client_certificate=True)
        port = await listen_at(listener, config.listen)
        stack.push_async_callback(listener.close)
        listening = True
        keep_running(stack, expiry.watch(identity))
        if config.metrics.port is not None:
            collector = SmpCollector(router, listener, port)
            registry.register(collector)
            keep_running(stack, collector.count())
        yield public_address(Scheme.SMP, config.listen, port, identity.fingerprint)
        listening = False


async def _open(
    config: SmpConfig, directory: Path, settings: SmpSettings, journal: Journal
) -> SmpRouter:
    try:
        return await SmpRouter.start(config.store_url(directory), settings, journal)
    except DatabaseError as exc:
        raise store_error(exc) from exc
