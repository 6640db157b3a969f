"""The phone's own Web Push endpoint: an HTTPS server that decrypts pushes and stores them.

A push is written to disk before it is answered with 201, so that none is lost if the phone is
killed. It is removed by `handled`.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Final

from aiohttp import web

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from heliograph.crypto.webpush import MAX_BODY, decrypt
from heliograph.push.vapid import signer_of
from heliograph.runtime.authority import Authority
from heliograph.runtime.files import write_file
from heliograph.wire.ntf.tokens import WPDeviceToken
from heliograph.wire.primitives import b64decode, b64encode

logger = logging.getLogger(__name__)

KEYS_FILE: Final = "webpush.json"
SPOOL: Final = "webpush"
MAX_SPOOLED = 1000
RETRY_AFTER = "60"
SHUTDOWN_TIMEOUT = 1.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class WebPushEndpoint:
    """A server for one subscription. Senders must trust `ca.crt` of the directory.

    With `senders`, VAPID keys, it refuses pushes that none of them has signed.
    """

    def __init__(
        self,
        directory: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        senders: Collection[bytes] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._host = host
        self._port = port
        self._senders = senders
        self._key, self._auth, self._path = _load_keys(directory / KEYS_FILE)
        self._authority = Authority(directory)
        self._spool = directory / SPOOL
        self._spool.mkdir(mode=0o700, exist_ok=True)
        self._arrived = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def ca_file(self) -> Path:
        return self._authority.file

    @property
    def port(self) -> int:
        return self._port

    @property
    def device(self) -> WPDeviceToken:
        path = f"/push/{self._path}"
        return WPDeviceToken(self._host, str(self._port), path, self._auth, self._key.public)

    async def start(self) -> None:
        """Listen. Raises `OSError` if the port is taken."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/push/{path}", self._receive)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT
        )
        await self._runner.setup()
        context = self._authority.server_context(*{self._host: None, **dict.fromkeys(LOOPBACK)})
        try:
            site = web.TCPSite(self._runner, self._host, self._port, ssl_context=context)
            await site.start()
        except BaseException:
            await self.close()
            raise
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def bodies(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the ID and plaintext of each stored push, then of each that arrives."""
        yielded: set[str] = set()
        while True:
            self._arrived.clear()
            names = await asyncio.to_thread(_oldest_first, self._spool)
            yielded.intersection_update(names)
            for name in names:
                if name not in yielded:
                    yielded.add(name)
                    yield name, await asyncio.to_thread((self._spool / name).read_bytes)
            await self._arrived.wait()

    async def handled(self, push_id: str) -> None:
        """Remove a stored push."""
        await asyncio.to_thread((self._spool / push_id).unlink, missing_ok=True)

    async def _receive(self, request: web.Request) -> web.Response:
        if request.match_info["path"] != self._path:
            return web.Response(status=404)
        if request.headers.get("content-encoding") != "aes128gcm":
            return web.Response(status=415)
        if not self._is_expected(request):
            return web.Response(status=403)
        try:
            plain = decrypt(await request.read(), self._key, self._auth)
        except CryptoError:
            logger.warning("rejected a push that was not encrypted for this phone")
            return web.Response(status=400)
        if not await asyncio.to_thread(_store, self._spool, plain):
            return web.Response(status=429, headers={"retry-after": RETRY_AFTER})
        self._arrived.set()
        return web.Response(status=201, headers={"location": f"/push/{self._path}"})

    def _is_expected(self, request: web.Request) -> bool:
        if not self._senders:
            return True
        header = request.headers.get("authorization", "")
        try:
            return signer_of(header, f"https://{request.host}", time.time()) in self._senders
        except CryptoError:
            return False


def _store(spool: Path, plain: bytes) -> bool:
    """Return False if too many pushes are stored already."""
    if sum(1 for _ in spool.iterdir()) >= MAX_SPOOLED:
        return False
    write_file(spool / f"{time.time_ns():020}-{os.urandom(4).hex()}", plain, 0o600)
    return True


def _oldest_first(spool: Path) -> list[str]:
    return sorted(file.name for file in spool.iterdir() if not file.name.startswith("."))


def _load_keys(file: Path) -> tuple[P256Key, bytes, str]:
    """Return the subscription's key, secret and path; they are generated once."""
    if not file.exists():
        values = {
            "key": P256Key.generate().to_pem().decode(),
            "auth": b64encode(os.urandom(16)),
            "path": b64encode(os.urandom(18)),
        }
        write_file(file, json.dumps(values).encode(), 0o600)
    values = json.loads(file.read_bytes())
    return P256Key.from_pem(values["key"].encode()), b64decode(values["auth"]), values["path"]
