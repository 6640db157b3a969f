"""Receive sealed segments over HTTP, from routers on other machines and from phones.

    PUT /v1/segments/ROUTER/BOOT-NUMBER.parquet     Authorization: Bearer TOKEN
    PUT /v1/heads/ROUTER-BOOT.json
    GET /v1/acknowledged/ROUTER

A PUT is answered with 201 if the segment is stored and durable, 200 if it was there, 400 if it is
no segment, or not of this router, 401 without the token, 403 if a phone's token sends what is not a
phone's, 409 if another one has its name, 413 if it is too large, 507 if there is no room for it.
Sending a segment again changes nothing; a head replaces the one before it, unless that is newer
(409). A GET returns what the pipeline has acknowledged.
"""

import asyncio
import hmac
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from aiohttp import web

from heliograph.journal.connections import Connections
from heliograph.journal.heads import HEADS, MAX_HEAD, Head, decode_head, head_name, write_head
from heliograph.journal.readers import ACKNOWLEDGED
from heliograph.journal.schema import KINDS
from heliograph.journal.storage.segments import Sealed
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import sync_directory, write_file
from heliograph.runtime.http import discreet
from heliograph.runtime.listening import refused

__all__ = ["MAX_SEGMENT", "Collector", "Tokens"]

MAX_SEGMENT = 64 << 20
MAX_UNPACKED = 1 << 30
"""Bytes of a segment's columns without compression."""
MAX_TEXT = 4096
MAX_EVENTS = 4_000_000
MAX_CONCURRENT = 4
"""Segments in memory at a time, of routers and as many of phones; further requests wait."""
MAX_HEADS = 100_000
"""Runs whose heads are kept."""
RECEIVE_SECONDS = 60.0
KEEP_SECONDS = 15.0
"""Seconds that a connection is kept without a request."""
_NAME = re.compile(r"([0-9a-f]{16})/([0-9]{1,18})-([0-9]{8,12})\.parquet")
_HEAD = re.compile(r"[0-9a-f]{16}-[0-9]{1,18}\.json")
_ROUTER = re.compile(r"[0-9a-f]{16}")
_COLUMNS = frozenset(("router", "part", "boot", "seq", "kind", "at"))
PHONE_PARTS = frozenset(("agent", "device"))
PHONE_KINDS = frozenset(
    kind.name for kind in KINDS.values() if PHONE_PARTS & {part.value for part in kind.parts}
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token of routers, and that of phones, which may send only what phones write."""

    routers: str = field(repr=False)
    phones: str | None = field(default=None, repr=False)


class Collector:
    """HTTP server that stores segments in `directory`, at most `limit` bytes in all."""

    def __init__(self, directory: Path, tokens: Tokens, limit: int) -> None:
        self._directory = directory
        self._tokens = tokens
        self._limit = limit
        for leftover in directory.glob("*/.*"):
            leftover.unlink(missing_ok=True)  # of a killed collector: never answered with 201
        self._bytes = sum(path.stat().st_size for path in directory.glob("*/*.parquet"))
        self._heads = sum(1 for _ in (directory / HEADS).glob("*.json"))
        self._lock = asyncio.Lock()
        self._room = asyncio.Semaphore(MAX_CONCURRENT)
        self._room_of_phones = asyncio.Semaphore(MAX_CONCURRENT)  # routers wait for none of them
        application = web.Application(client_max_size=MAX_SEGMENT)
        application.router.add_put("/v1/segments/{router}/{name}", self._put)
        application.router.add_put("/v1/heads/{name}", self._put_head)
        application.router.add_get("/v1/acknowledged/{router}", self._acknowledged)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=discreet(__name__),
            keepalive_timeout=KEEP_SECONDS,
            shutdown_timeout=1.0,
        )
        self._connections: Connections

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen, and return the port. Raises `StartError`."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None  # noqa: S101
        self._connections = Connections(server)
        try:
            return await self._connections.listen(host, port, tls)
        except OSError as exc:
            await self._runner.cleanup()
            raise StartError(refused(exc, host, port, "--listen")) from exc

    async def close(self) -> None:
        await self._connections.close()
        await self._runner.cleanup()

    def _parts(self, request: web.Request) -> frozenset[str] | None:
        """Return the parts whose events the sender may send, None without a token; empty is any."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer":
            return None
        is_router = hmac.compare_digest(given.encode(), self._tokens.routers.encode())
        is_phone = hmac.compare_digest(given.encode(), (self._tokens.phones or "").encode())
        is_phone = is_phone and self._tokens.phones is not None
        if is_router or is_phone:
            self._connections.trust(request.protocol)
        if is_router:
            return frozenset()
        return PHONE_PARTS if is_phone else None

    async def _put(self, request: web.Request) -> web.Response:
        parts = self._parts(request)
        if parts is None:
            return _answer(401, "the token is missing or wrong")
        name = f"{request.match_info['router']}/{request.match_info['name']}"
        match = _NAME.fullmatch(name)
        if match is None:
            return _answer(400, "this is not the name of a segment")
        async with self._room_of_phones if parts else self._room:
            try:
                async with asyncio.timeout(RECEIVE_SECONDS):
                    data = await request.read()
            except TimeoutError:
                return _answer(408, f"it was not received in {RECEIVE_SECONDS:.0f} seconds")
            wrong = await asyncio.to_thread(_check, data, match[1], int(match[2]), parts)
            if wrong is not None:
                return _answer(*wrong)
            async with self._lock:
                return _answer(*await asyncio.to_thread(self._store, self._directory / name, data))

    async def _put_head(self, request: web.Request) -> web.Response:
        parts = self._parts(request)
        if parts is None:
            return _answer(401, "the token is missing or wrong")
        name = request.match_info["name"]
        size = request.content_length
        if _HEAD.fullmatch(name) is None or size is None or size > MAX_HEAD:
            return _answer(400, "this is not the head of a run")
        try:
            async with asyncio.timeout(RECEIVE_SECONDS):
                head = decode_head(await request.content.readexactly(size))
        except TimeoutError:
            return _answer(408, f"it was not received in {RECEIVE_SECONDS:.0f} seconds")
        except (ValueError, asyncio.IncompleteReadError):
            return _answer(400, "this is not the head of a run")
        if name != head_name(head.router, head.boot):
            return _answer(400, "its name is that of another router or run")
        if parts and head.part not in parts:
            return _answer(403, "the token of phones allows only what phones write")
        async with self._lock:
            return _answer(*await asyncio.to_thread(self._store_head, head, parts))

    async def _acknowledged(self, request: web.Request) -> web.Response:
        if self._parts(request) is None:
            return _answer(401, "the token is missing or wrong")
        router = request.match_info["router"]
        if _ROUTER.fullmatch(router) is None:
            return _answer(404, "this is not a router")
        try:
            data = await asyncio.to_thread((self._directory / router / ACKNOWLEDGED).read_bytes)
        except OSError:
            return _answer(404, "nothing is acknowledged")
        return web.Response(body=data, content_type="application/json")

    def _store(self, path: Path, data: bytes) -> tuple[int, str]:
        if path.exists():
            same = path.read_bytes() == data
            return (200, "it is there") if same else (409, "another segment has this name")
        if self._bytes + len(data) > self._limit:
            self._make_room(self._limit - len(data))
        if self._bytes + len(data) > self._limit:
            return 507, "there is no room for it until the pipeline has read more"
        try:
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                sync_directory(self._directory)
            write_file(path, data, 0o600)
        except OSError as exc:
            return 507, f"it cannot be stored: {exc.strerror}"
        self._bytes += len(data)
        return 201, "stored"

    def _store_head(self, head: Head, parts: frozenset[str]) -> tuple[int, str]:
        path = self._directory / HEADS / head_name(head.router, head.boot)
        is_new, stored = not path.exists(), _read_head(path)
        if stored is not None and stored.part != head.part and parts:
            return 409, "the run is not a phone's"
        if stored is not None and stored.part == head.part and stored.seq > head.seq:
            return 409, "a newer head of this run is there"
        if is_new and self._heads >= MAX_HEADS:
            return 507, f"there are {MAX_HEADS} heads already: remove those of old runs"
        try:
            write_head(self._directory, head)
        except OSError as exc:
            return 507, f"it cannot be stored: {exc.strerror}"
        self._heads += is_new
        return 201, "stored"

    def _make_room(self, most: int) -> None:
        """Remove segments that the pipeline has acknowledged."""
        for folder in sorted(self._directory.iterdir()):
            if self._bytes > most and _ROUTER.fullmatch(folder.name) and folder.is_dir():
                sealed = Sealed(folder)
                sealed.scan()
                before = _size(folder)
                sealed.remove_oldest(max(0, sealed.bytes - (self._bytes - most)), unread=False)
                self._bytes -= before - _size(folder)


def _read_head(path: Path) -> Head | None:
    """Return the head in a file; None if there is none, or a damaged one."""
    try:
        return decode_head(path.read_bytes())
    except (OSError, ValueError):
        return None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def _answer(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


def _longest(column: pa.Array) -> int:
    """Return the bytes of the longest text in a column."""
    if pa.types.is_list(column.type):
        column = column.values
    if not pa.types.is_dictionary(column.type):
        return 0
    return pc.max(pc.binary_length(column.dictionary)).as_py() or 0


def _check(data: bytes, router: str, boot: int, parts: frozenset[str]) -> tuple[int, str] | None:
    """Return what is wrong with a segment: its status and text."""
    try:
        columns = pq.read_metadata(pa.BufferReader(data)).schema
        texts = [c.path for c in columns if c.physical_type == "BYTE_ARRAY"]
        # A text that is repeated a million times stays one text.
        file = pq.ParquetFile(
            pa.BufferReader(data), page_checksum_verification=True, read_dictionary=texts
        )
        if not {*file.schema_arrow.names} >= _COLUMNS:
            return 400, "this is not a segment"
        if not 0 < file.metadata.num_rows <= MAX_EVENTS:
            return 400, f"a segment has 1 to {MAX_EVENTS} events"
        groups = range(file.num_row_groups)
        if sum(file.metadata.row_group(group).total_byte_size for group in groups) > MAX_UNPACKED:
            return 413, f"a segment has at most {MAX_UNPACKED} bytes without compression"
        # A damaged segment would keep its name for good: read all of it.
        for batch in file.iter_batches():
            if max(map(_longest, batch.columns)) > MAX_TEXT:
                return 400, f"a text of a segment has at most {MAX_TEXT} bytes"
        found = file.read(columns=["router", "part", "boot", "kind"])
        routers, boots, written, kinds = (
            pc.unique(found[name]).to_pylist() for name in ("router", "boot", "part", "kind")
        )
    except (pa.ArrowException, OSError):
        return 400, "this is not a segment"
    if routers != [router] or boots != [boot]:
        return 400, "its name is that of another router or run"
    if parts and not ({*written} <= parts and {*kinds} <= PHONE_KINDS):
        return 403, "the token of phones allows only what phones write"
    return None
