import asyncio
import socket

import aiohttp
import pytest

from heliograph.runtime import http as module
from heliograph.runtime.errors import StartError
from heliograph.runtime.http import HttpServer
from heliograph.runtime.metrics import process_registry


class Router:
    """What `/readyz` asks."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.error: Exception | None = None
        self.release = asyncio.Event()
        self.release.set()
        self.asked = 0

    async def ready(self) -> str | None:
        self.asked += 1
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return self.reason


async def get(port: int, path: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text(), response.headers["Content-Type"]


async def test_what_is_served() -> None:
    router = Router()
    server = HttpServer(process_registry(), router.ready)
    port = await server.start("127.0.0.1", 0)
    try:
        assert (await get(port, "/livez"))[:2] == (200, "ok\n")
        assert (await get(port, "/readyz"))[:2] == (200, "ok\n")
        status, text, kind = await get(port, "/metrics")
        assert status == 200
        assert "process_open_fds" in text
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        assert (await get(port, "/"))[0] == 404
    finally:
        await server.close()


async def test_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READINESS_TIMEOUT", 0.05)
    router = Router()
    server = HttpServer(process_registry(), router.ready)
    port = await server.start("127.0.0.1", 0)
    try:
        router.reason = "starting"
        assert (await get(port, "/readyz"))[:2] == (503, "not ready: starting\n")
        router.error = ValueError("secret")
        assert (await get(port, "/readyz"))[:2] == (503, "not ready: ValueError\n")
        router.reason = router.error = None
        router.release.clear()
        asked = router.asked
        for _ in range(3):
            assert (await get(port, "/readyz"))[:2] == (
                503,
                "not ready: it does not answer in time\n",
            )
        assert router.asked == asked + 1
        assert (await get(port, "/livez"))[0] == 200
        router.release.set()
        assert (await get(port, "/readyz"))[0] == 200
        router.release.clear()
        assert (await get(port, "/readyz"))[0] == 503
    finally:
        await server.close()


async def test_port_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = HttpServer(process_registry(), Router().ready)
        with pytest.raises(StartError, match=r"taken by another program.*\[metrics\] port"):
            await server.start("127.0.0.1", taken.getsockname()[1])


async def test_what_is_not_http_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = HttpServer(process_registry(), Router().ready)
    port = await server.start("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"S3CRET HTTP/9.9\r\n\r\n")
        async with asyncio.timeout(30):
            assert b" 400 " in await reader.readline()
        writer.close()
    finally:
        await server.close()
    assert "S3CRET" not in caplog.text
    assert "127.0.0.1" not in caplog.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9", 200),
        ("[::1]:9", 200),
        ("rebound.example", 421),
        ("192.0.2.1", 421),
    ],
)
async def test_a_name_that_a_web_page_chose_is_refused(host: str, status: int) -> None:
    server = HttpServer(process_registry(), Router().ready)
    port = await server.start("127.0.0.1", 0)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": host}) as response,
        ):
            assert response.status == status
    finally:
        await server.close()


async def test_any_name_where_it_listens_on_all_addresses() -> None:
    server = HttpServer(process_registry(), Router().ready)
    port = await server.start("0.0.0.0", 0)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/livez", headers={"Host": "ntf"}) as response,
        ):
            assert response.status == 200
    finally:
        await server.close()
