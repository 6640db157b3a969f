"""What both routers do to become a service: a store, a port, metrics, and work beside them."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import CollectorRegistry

from heliograph.db.errors import DatabaseError, DatabaseLost
from heliograph.runtime.errors import OperatorError, StartError
from heliograph.runtime.http import HttpServer, Readiness
from heliograph.runtime.listening import is_wildcard, refused
from heliograph.runtime.sections import Listen, Metrics
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress

__all__ = ["keep_running", "listen_at", "public_address", "serve_metrics", "store_error"]

logger = logging.getLogger(__name__)


async def serve_metrics(
    stack: AsyncExitStack, options: Metrics, registry: CollectorRegistry, ready: Readiness
) -> None:
    """Until the stack unwinds, if the operator wants them."""
    if options.port is None:
        return
    http = HttpServer(registry, ready)
    port = await http.start(options.host, options.port)
    stack.push_async_callback(http.close)
    logger.info("metrics at http://%s:%d/metrics", options.host, port)


async def listen_at(listener: Listener, options: Listen) -> int:
    """The port that it got."""
    bind, port = options.bind_address, options.port
    try:
        return await listener.start(bind, port)
    except OSError as exc:
        raise StartError(refused(exc, bind, port, "[listen]")) from exc


def public_address(scheme: Scheme, options: Listen, port: int, fingerprint: bytes) -> str:
    if any(map(is_wildcard, options.hosts)):
        logger.warning(
            "%s is no address that clients could use: set [listen] host to the name or address"
            ' of this machine, and bind = "*"',
            options.host,
        )
    return str(ServerAddress(scheme, options.hosts, str(port), fingerprint))


def keep_running(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Beside everything else, until the stack unwinds."""
    stack.push_async_callback(_cancel, asyncio.create_task(work))


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def store_error(exc: DatabaseError) -> OperatorError:
    if isinstance(exc, DatabaseLost):
        return StartError(f"the store cannot be reached: {exc}: see [store] url")
    return StartError(f"the store cannot be opened: {exc}")
