"""The page and its API over HTTP. Thin: what is told comes from `live`, `history` and `search`."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from heliograph.runtime.errors import StartError
from heliograph.runtime.http import discreet
from heliograph.runtime.listening import refused
from heliograph.web.guard import guard
from heliograph.web.live import live
from heliograph.web.openapi import MAX_HOURS, MAX_ID, specification
from heliograph.web.sampler import Sampler

__all__ = ["Sources", "serve"]

_STATIC = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


class Sources(Protocol):
    """What the page asks of the system, besides the metrics. Each may take a while."""

    def parts(self) -> list[dict[str, Any]]: ...

    def pipeline(self) -> dict[str, Any]: ...

    def history(self, hours: int) -> dict[str, Any]: ...

    def search(self, wanted: str) -> dict[str, Any]: ...


class _Page:
    def __init__(self, ntf: Sampler, smp: Sampler, sources: Sources) -> None:
        self._ntf, self._smp, self._sources = ntf, smp, sources
        files = resources.files("heliograph.web") / "static"
        self._static = {name: (files / name).read_bytes() for name in _STATIC}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._file("index.html")),
            *(web.get(f"/{name}", self._file(name)) for name in _STATIC if name != "index.html"),
            web.get("/api/live", self._live),
            web.get("/api/history", self._history),
            web.get("/api/search", self._search),
            web.get("/api/openapi.json", self._openapi),
        ]

    def _file(self, name: str) -> Any:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(
                body=self._static[name], content_type=_STATIC[name], charset="utf-8"
            )

        return answer

    async def _live(self, _: web.Request) -> web.Response:
        parts, pipeline = await asyncio.to_thread(
            lambda: (self._sources.parts(), self._sources.pipeline())
        )
        told = live(tuple(self._ntf.samples), tuple(self._smp.samples))
        return web.json_response(
            {
                "at": time.time(),
                "parts": parts,
                "problems": {"ntf": self._ntf.problem, "smp": self._smp.problem},
                "pipeline": pipeline,
                **told,
            }
        )

    async def _history(self, request: web.Request) -> web.Response:
        text = request.query.get("hours", "24")
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_HOURS):
            raise web.HTTPBadRequest(reason=f"hours must be a number from 1 to {MAX_HOURS}")
        return web.json_response(await asyncio.to_thread(self._sources.history, int(text)))

    async def _search(self, request: web.Request) -> web.Response:
        wanted = request.query.get("id", "").strip()
        if not 1 <= len(wanted) <= MAX_ID or not wanted.isprintable():
            raise web.HTTPBadRequest(reason=f"id must be text of 1 to {MAX_ID} characters")
        return web.json_response(await asyncio.to_thread(self._sources.search, wanted))

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.json_response(specification())


@asynccontextmanager
async def serve(
    host: str, port: int, token: str | None, ntf: Sampler, smp: Sampler, sources: Sources
) -> AsyncIterator[str]:
    """The page, inside the context, which gives its URL."""
    app = web.Application(middlewares=[guard(token)])
    app.add_routes(_Page(ntf, smp, sources).routes())
    runner = web.AppRunner(app, access_log=None, logger=discreet(__name__), shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as exc:
            raise StartError(refused(exc, host, port, "[page]")) from exc
        async with aiohttp.ClientSession() as session:
            tasks = [asyncio.ensure_future(item.run(session)) for item in (ntf, smp)]
            try:
                bound = runner.addresses[0][1]
                yield f"http://{f'[{host}]' if ':' in host else host}:{bound}/"
            finally:
                for task in tasks:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
    finally:
        await runner.cleanup()
