"""Receive sealed segments over HTTP, from routers on other machines and from phones.

    PUT /v1/segments/ROUTER/BOOT-NUMBER.parquet     Authorization: Bearer TOKEN

201 if it is stored and durable, 200 if it was there, 400 if it is no segment, 401 without the
token, 409 if another one has its name, 413 if it is too large, 507 if there is no room for it.
Sending a segment again changes nothing.
"""

import asyncio
import hmac
import re
import ssl
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import web

from heliograph.runtime.errors import StartError
from heliograph.runtime.files import write_file
from heliograph.runtime.http import discreet
from heliograph.runtime.listening import refused

__all__ = ["MAX_SEGMENT", "Collector"]

MAX_SEGMENT = 64 << 20
_NAME = re.compile(r"[0-9a-f]{16}/[0-9]{1,20}-[0-9]{8,12}\.parquet")
_COLUMNS = frozenset(("router", "boot", "seq", "kind", "at"))


class Collector:
    """HTTP server that stores segments in `directory`, at most `limit` bytes in all."""

    def __init__(self, directory: Path, token: str, limit: int) -> None:
        self._directory = directory
        self._token = token.encode()
        self._limit = limit
        self._bytes = sum(path.stat().st_size for path in directory.glob("*/*.parquet"))
        self._lock = asyncio.Lock()
        application = web.Application(client_max_size=MAX_SEGMENT)
        application.router.add_put("/v1/segments/{router}/{name}", self._put)
        self._runner = web.AppRunner(
            application, access_log=None, logger=discreet(__name__), shutdown_timeout=1.0
        )

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen, and return the port. Raises `StartError`."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        except OSError as exc:
            await self._runner.cleanup()
            raise StartError(refused(exc, host, port, "--listen")) from exc
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _put(self, request: web.Request) -> web.Response:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(given.encode(), self._token):
            return web.Response(status=401, text="the token is missing or wrong\n")
        name = f"{request.match_info['router']}/{request.match_info['name']}"
        if _NAME.fullmatch(name) is None:
            return web.Response(status=400, text="this is not the name of a segment\n")
        data = await request.read()
        if not await asyncio.to_thread(_is_segment, data):
            return web.Response(status=400, text="this is not a segment\n")
        async with self._lock:
            status, text = await asyncio.to_thread(self._store, self._directory / name, data)
        return web.Response(status=status, text=f"{text}\n")

    def _store(self, path: Path, data: bytes) -> tuple[int, str]:
        if path.exists():
            same = path.read_bytes() == data
            return (200, "it is there") if same else (409, "another segment has this name")
        if self._bytes + len(data) > self._limit:
            return 507, "there is no room for it: see --max-megabytes"
        try:
            path.parent.mkdir(exist_ok=True)
            write_file(path, data, 0o600)
        except OSError as exc:
            return 507, f"it cannot be stored: {exc.strerror}"
        self._bytes += len(data)
        return 201, "stored"


def _is_segment(data: bytes) -> bool:
    try:
        return {*pq.read_schema(pa.BufferReader(data)).names} >= _COLUMNS
    except (pa.ArrowException, OSError):
        return False
