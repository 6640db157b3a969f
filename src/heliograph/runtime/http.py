"""HTTP endpoint of a router for operators: /metrics, /livez, /readyz.

It shares the router's event loop, so nothing here may take long. It has no authentication: keep it
on loopback or a private network. It exposes numbers, and nothing about a client.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Coroutine

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry

from heliograph.runtime.errors import StartError
from heliograph.runtime.listening import refused
from heliograph.runtime.metrics import CONTENT_TYPE, expose
from heliograph.tasks import SharedTasks

__all__ = ["HttpServer", "Readiness", "discreet", "refuse_foreign_hosts"]

Readiness = Callable[[], Coroutine[object, object, str | None]]
"""Return None if the router is ready, else the reason why not."""

READINESS_TIMEOUT = 2.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Discreet(logging.Filter):
    """Remove the request and the client's address from log records: they may hold secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        record.msg, record.args = "a request failed", ()
        return not isinstance(error, HttpProcessingError)


_DISCREET = _Discreet()


def discreet(name: str) -> logging.Logger:
    """Return a logger for an HTTP server that logs no part of a malformed request."""
    logger = logging.getLogger(name)
    logger.addFilter(_DISCREET)
    return logger


@web.middleware
async def refuse_foreign_hosts(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse names that a web page chose for this machine.

    A browser on this machine would show the answer to a page whose name resolves to 127.0.0.1.
    """
    if not _is_loopback(request.url.host or ""):
        raise web.HTTPMisdirectedRequest(text="ask by 127.0.0.1, ::1 or localhost\n")
    return await handler(request)


class HttpServer:
    """The endpoint of one router. Start it first, so that it reports a router that is starting."""

    def __init__(self, registry: CollectorRegistry, ready: Readiness) -> None:
        self._registry = registry
        self._ready = ready
        self._checks = SharedTasks[None, str | None]("readiness check")
        self._is_loopback = False
        application = web.Application(middlewares=[self._check_host])
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/livez", self._livez)
        application.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(
            application, access_log=None, logger=discreet(__name__), shutdown_timeout=1.0
        )

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which differs from a given 0."""
        self._is_loopback = _is_loopback(host)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as exc:
            await self._runner.cleanup()
            raise StartError(refused(exc, host, port, "[metrics]")) from exc
        bound: int = self._runner.addresses[0][1]
        return bound

    @web.middleware
    async def _check_host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._is_loopback:
            return await refuse_foreign_hosts(request, handler)
        return await handler(request)

    async def close(self) -> None:
        await self._checks.close()
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
        """Run one check at a time: probes must not pile up behind a store that hangs."""
        try:
            async with asyncio.timeout(READINESS_TIMEOUT):
                return await self._checks.run(None, self._ready)
        except TimeoutError:
            return "it does not answer in time"
        except Exception as exc:
            return type(exc).__name__


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
