"""What operators and their machines ask a router over HTTP: /metrics, /livez, /readyz.

It shares the router's event loop, so nothing here may take long. It has no authentication: keep it
on loopback or a private network. It tells numbers, and nothing of any client.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry

from heliograph.runtime.errors import StartError
from heliograph.runtime.listening import refused
from heliograph.runtime.metrics import CONTENT_TYPE, expose

__all__ = ["HttpServer", "Readiness", "discreet"]

Readiness = Callable[[], Awaitable[str | None]]
"""None if the router does its work, else why not."""

READINESS_TIMEOUT = 2.0


class _Discreet(logging.Filter):
    """What a client sent, and from where, is not logged: it may be a secret, and is not HTTP."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        record.msg, record.args = "a request failed", ()
        return not isinstance(error, HttpProcessingError)


_DISCREET = _Discreet()


def discreet(name: str) -> logging.Logger:
    """For an HTTP server, which would else tell what it could not read."""
    logger = logging.getLogger(name)
    logger.addFilter(_DISCREET)
    return logger


class HttpServer:
    """Start it before the router, so that it can tell that the router is starting."""

    def __init__(self, registry: CollectorRegistry, ready: Readiness) -> None:
        self._registry = registry
        self._ready = ready
        self._asking: asyncio.Future[str | None] | None = None
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/livez", self._livez)
        application.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(
            application, access_log=None, logger=discreet(__name__), shutdown_timeout=1.0
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; the result is the port, which matters if it was given as 0."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as exc:
            await self._runner.cleanup()
            raise StartError(refused(exc, host, port, "[metrics]")) from exc
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        text = expose(self._registry)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = await self._reason()
        if reason is None:
            return web.Response(text="ok\n")
        return web.Response(text=f"not ready: {reason}\n", status=503)

    async def _reason(self) -> str | None:
        """One question at a time: a store that hangs is not asked again by every probe."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ready())
        try:
            async with asyncio.timeout(READINESS_TIMEOUT):
                return await asyncio.shield(self._asking)
        except TimeoutError:
            return "it does not answer in time"
        except Exception as exc:
            return type(exc).__name__
