"""The page and its API over HTTP. Thin: `Monitor` has what it shows of now, `Sources` the rest."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources

from aiohttp import web
from aiohttp.typedefs import Handler

from heliograph.runtime.errors import StartError
from heliograph.runtime.http import discreet
from heliograph.runtime.listening import refused
from heliograph.tasks import TaskScope
from heliograph.web.guard import guard
from heliograph.web.metrics.series import RANGES
from heliograph.web.monitor import Monitor
from heliograph.web.openapi import MAX_HOURS, MAX_ID, specification
from heliograph.web.pairing import qr_svg
from heliograph.web.push_test import PushTest

__all__ = ["serve"]

_STATIC = {
    "index.html": "text/html",
    "pair.html": "text/html",
    "pair.js": "text/javascript",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "charts.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "vendor/uPlot.iife.min.js": "text/javascript",
    "vendor/uPlot.min.css": "text/css",
    "vendor/uPlot.LICENSE": "text/plain",
}


class _StatusPage:
    def __init__(self, monitor: Monitor, push_test: PushTest, *, asks_token: bool) -> None:
        self._monitor = monitor
        self._push_test = push_test
        self._asks_token = asks_token
        files = resources.files("heliograph.web") / "static"
        self._static = {name: (files / name).read_bytes() for name in _STATIC}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._file("index.html")),
            web.get("/pair", self._file("pair.html")),
            *(web.get(f"/{name}", self._file(name)) for name in _STATIC if "html" not in name),
            web.get("/api/live", self._live),
            web.get("/api/series", self._series),
            web.get("/api/history", self._history),
            web.get("/api/search", self._search),
            web.get("/api/addresses", self._addresses),
            web.get("/api/qr", self._qr_code),
            web.get("/api/openapi.json", self._openapi),
            web.post("/api/test-push", self._test_push),
        ]

    def _file(self, name: str) -> Handler:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(
                body=self._static[name], content_type=_STATIC[name], charset="utf-8"
            )

        return answer

    async def _live(self, _: web.Request) -> web.Response:
        now = self._monitor.current(time.time())
        return web.json_response({**now, "actions_ask_token": self._asks_token})

    async def _series(self, request: web.Request) -> web.Response:
        name = request.query.get("range", "10m")
        if name not in RANGES:
            raise web.HTTPBadRequest(reason=f"range must be one of {', '.join(RANGES)}")
        try:
            since = float(request.query.get("since", "0"))
        except ValueError:
            raise web.HTTPBadRequest(reason="since must be a number of seconds") from None
        return web.json_response(self._monitor.series[name].after(since))

    async def _history(self, request: web.Request) -> web.Response:
        text = request.query.get("hours", "24")
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_HOURS):
            raise web.HTTPBadRequest(reason=f"hours must be a number from 1 to {MAX_HOURS}")
        history = self._monitor.sources.history
        return web.json_response(await asyncio.to_thread(history, int(text)))

    async def _search(self, request: web.Request) -> web.Response:
        wanted = request.query.get("id", "").strip()
        if not 1 <= len(wanted) <= MAX_ID or not wanted.isprintable():
            raise web.HTTPBadRequest(reason=f"id must be text of 1 to {MAX_ID} characters")
        return web.json_response(await asyncio.to_thread(self._monitor.sources.search, wanted))

    async def _addresses(self, _: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(self._monitor.sources.addresses))

    async def _qr_code(self, request: web.Request) -> web.Response:
        found = await asyncio.to_thread(self._monitor.sources.addresses)
        router = request.query.get("router", "")
        if router not in found:
            raise web.HTTPBadRequest(reason=f"router must be one of {', '.join(found)}")
        address = found[router]
        if address is None:
            raise web.HTTPNotFound(reason="the router does not run")
        return web.Response(body=qr_svg(address), content_type="image/svg+xml")

    async def _test_push(self, _: web.Request) -> web.Response:
        if self._push_test.is_running:
            raise web.HTTPConflict(reason="a test push is being sent already")
        return web.json_response(await self._push_test.run())

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.json_response(specification())


@asynccontextmanager
async def serve(
    host: str,
    port: int,
    token: str | None,
    monitor: Monitor,
    push_test: PushTest,
    action_token: str | None = None,
) -> AsyncIterator[str]:
    """Serve the page inside the context; the value is its URL.

    Without a `token` the page answers to loopback addresses only, and actions need `action_token`.
    """
    app = web.Application(middlewares=[guard(token, action_token)])
    app.add_routes(_StatusPage(monitor, push_test, asks_token=token is None).routes())
    runner = web.AppRunner(app, access_log=None, logger=discreet(__name__), shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as exc:
            raise StartError(refused(exc, host, port, "[page]")) from exc
        async with TaskScope() as tasks:
            tasks.spawn(monitor.run(), name="page monitor")
            bound = runner.addresses[0][1]
            yield f"http://{f'[{host}]' if ':' in host else host}:{bound}/"
    finally:
        await runner.cleanup()
