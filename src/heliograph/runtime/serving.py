"""Start-up shared by both routers: a store, a port, metrics, and background work."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from heliograph.db.errors import DatabaseError
from heliograph.runtime import expiry
from heliograph.runtime.config.sections import Listen, Metrics
from heliograph.runtime.errors import StartError
from heliograph.runtime.identity import load_identity
from heliograph.runtime.listening import is_wildcard, refused
from heliograph.runtime.metrics import process_registry
from heliograph.runtime.process import raise_file_limit
from heliograph.runtime.reference.storelog import UnfinishedImport
from heliograph.tasks import TaskScope
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress

if TYPE_CHECKING:  # it imports aiohttp, a quarter of the time that a router takes to start
    from heliograph.runtime.http import Readiness

__all__ = ["RouterService", "public_address", "router_service"]

logger = logging.getLogger(__name__)


class RouterService:
    """What both routers have in common while they run. `stack` closes what they opened."""

    def __init__(self, part: str, directory: Path) -> None:
        self.identity = load_identity(directory, time.time())
        self.registry = process_registry()
        self.registry.register(expiry.CertificateCollector(part, self.identity))
        self.stack = AsyncExitStack()
        self._check: Callable[[], Awaitable[object]] | None = None

    async def listen(
        self,
        listener: Listener,
        options: Listen,
        check: Callable[[], Awaitable[object]],
        *,
        reuse_port: bool = False,
    ) -> tuple[int, TaskScope]:
        """Accept connections; return the port, and a scope for background work.

        The service is ready from now on, while `check` raises no `DatabaseError`.
        """
        bind, port = options.bind_address, options.port
        try:
            port = await listener.start(bind, port, reuse_port=reuse_port)
        except OSError as exc:
            raise StartError(refused(exc, bind, port, "[listen]")) from exc
        self.stack.push_async_callback(listener.close)
        self._check = check
        tasks = await self.stack.enter_async_context(TaskScope())
        tasks.spawn(expiry.watch(self.identity), name="certificate expiry")
        return port, tasks

    async def not_ready(self) -> str | None:
        """Return why the router is not ready, None if it is."""
        if self._check is None:
            return "starting"
        try:
            await self._check()
        except DatabaseError as exc:
            return f"the store fails: {exc}"
        return None

    def stop(self) -> None:
        """Stop being ready, so that no new client is sent here."""
        self._check = None


@asynccontextmanager
async def router_service(
    part: str,
    directory: Path,
    metrics: Metrics,
    max_files: int,
    record_port: Callable[[int], object] = lambda port: None,
) -> AsyncIterator[RouterService]:
    """Check what a start needs, and serve metrics. Raises `OperatorError`."""
    UnfinishedImport(directory).refuse(part)
    service = RouterService(part, directory)
    raise_file_limit(max_files)
    async with service.stack:
        port = await serve_metrics(service.stack, metrics, service.registry, service.not_ready)
        if port is not None:
            record_port(port)
        try:
            yield service
        finally:
            service.stop()


async def serve_metrics(
    stack: AsyncExitStack, options: Metrics, registry: CollectorRegistry, ready: "Readiness"
) -> int | None:
    """Serve metrics until the stack unwinds, if they are enabled; return the port."""
    if options.port is None:
        return None
    from heliograph.runtime.http import HttpServer

    http = HttpServer(registry, ready)
    port = await http.start(options.host, options.port)
    stack.push_async_callback(http.close)
    logger.info("metrics at http://%s:%d/metrics", options.host, port)
    return port


def public_address(scheme: Scheme, options: Listen, port: int, fingerprint: bytes) -> str:
    if any(map(is_wildcard, options.hosts)):
        logger.warning(
            "%s is no address that clients could use: set [listen] host to the name or address"
            ' of this machine, and bind = "*"',
            options.host,
        )
    return str(ServerAddress(scheme, options.hosts, str(port), fingerprint))
