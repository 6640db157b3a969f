"""Who may read the page."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from heliograph.system.layout import Layout
from heliograph.web.alerts import Installation
from heliograph.web.guard import SECURITY_HEADERS, guard
from heliograph.web.metrics.sampler import Sampler
from heliograph.web.monitor import Monitor
from heliograph.web.push_test import PushTest
from heliograph.web.server import serve


@asynccontextmanager
async def served(token: str | None) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="secret")

    app = web.Application(middlewares=[guard(token, token)])
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def get(
    url: str, cookies: dict[str, str] | None = None, **headers: str
) -> tuple[int, str, aiohttp.ClientResponse]:
    jar = aiohttp.DummyCookieJar()
    async with (
        aiohttp.ClientSession(cookies=cookies, cookie_jar=jar) as session,
        session.get(url, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.text(), answer


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:80", 200),
        ("localhost:80", 200),
        ("[::1]:80", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.0.2.1", 403),
    ],
)
async def test_without_a_token_only_loopback_names(host: str, status: int) -> None:
    async with served(None) as url:
        found, text, answer = await get(url, Host=host)
    assert found == status
    assert ("secret" in text) == (status == 200)
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value


async def test_with_a_token() -> None:
    async with served("right") as url:
        assert (await get(url))[0] == 401
        assert (await get(url, Authorization="Bearer wrong"))[0] == 401
        assert (await get(f"{url}?token=wrong"))[0] == 401
        assert (await get(url, Authorization="Bearer right"))[0] == 200
        assert (await get(url, Host="push.example.com", Authorization="Bearer right"))[0] == 200


async def test_the_token_becomes_a_cookie_and_leaves_the_address() -> None:
    async with served("right") as url:
        status, _, answer = await get(f"{url}?token=right&x=1")
        assert status == 303
        assert answer.headers["Location"] == "/?x=1"
        cookie = answer.cookies["heliograph"]
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        assert (await get(url, Cookie=f"heliograph={cookie.value}"))[0] == 200


async def test_login_form() -> None:
    async with served("right") as url:
        status, text, answer = await get(url, Accept="text/html,*/*")
        assert (status, "<form" in text, "secret" in text) == (200, True, False)
        assert answer.headers["Content-Security-Policy"].count("form-action 'self'") == 1
        assert "hidden>" in text
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            for token, expected in (("wrong", 401), ("", 401), (" right\n", 303)):
                async with session.post(
                    f"{url}login", data={"token": token}, allow_redirects=False
                ) as posted:
                    assert posted.status == expected
                    if expected == 401:
                        assert 'role="alert">' in await posted.text()
                    else:
                        assert posted.headers["Location"] == "/"
                        cookie = posted.cookies["heliograph"]
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        assert (await get(url, Cookie=f"heliograph={cookie.value}"))[0] == 200


async def test_other_methods_and_places() -> None:
    async with served(None) as url, aiohttp.ClientSession() as session:
        async with session.post(url) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")
        async with session.get(f"{url}missing") as answer:
            assert answer.status == 404
            assert "error" in await answer.json()


async def test_the_token_leads_nowhere_else() -> None:
    async with served("right") as url:
        location = await raw(url, b"GET //evil.example/?token=right HTTP/1.1", b"Host: x")
        assert b"\r\nLocation: /evil.example/\r\n" in location


async def test_headers_that_are_no_text() -> None:
    async with served("right") as url:
        for header in (b"Authorization: Bearer \xff\xfe", b"Cookie: heliograph=\xff"):
            answer = await raw(url, b"GET / HTTP/1.1", b"Host: x", header)
            assert answer.startswith(b"HTTP/1.1 401"), answer


class Nothing:
    """A system of which nothing is known; its tables cannot be read."""

    def processes(self) -> list[dict[str, Any]]:
        return []

    def machine(self) -> dict[str, Any]:
        return {}

    def disks(self) -> list[dict[str, Any]]:
        return []

    def pipeline(self) -> dict[str, Any]:
        nothing = dict.fromkeys(("lag_seconds", "unaccounted", "objectives_until"))
        return {"state": "off", **nothing, "objectives": []}

    def history(self, hours: int) -> dict[str, Any]:
        raise RuntimeError("the tables are damaged")

    def addresses(self) -> dict[str, str | None]:
        return {"ntf": None, "smp": None}

    def search(self, wanted: str) -> dict[str, Any]:
        return {}


async def test_what_clients_send_is_not_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Neither their bytes nor their addresses, whether the fault is theirs or ours."""
    secret = b"T0KEN" * 2000
    installation = Installation("name", "host", "/srv", {})
    monitor = Monitor({"ntf": Sampler(None), "smp": Sampler(None)}, Nothing(), installation)
    async with serve("127.0.0.1", 0, None, monitor, PushTest(Layout(tmp_path))) as url:
        for line in (
            b"GET /?token=%s HTTP/1.1" % secret,
            b"GET / HTTP/9.9 %s" % secret,
            b"T0KEN\x00",
        ):
            assert b" 400 " in await raw(url, line, b"Host: localhost")
        assert (await get(f"{url}api/history?hours=7"))[0] == 500
    assert "T0KEN" not in caplog.text
    assert "127.0.0.1" not in caplog.text
    [record] = [item for item in caplog.records if item.levelno >= logging.WARNING]
    assert record.getMessage() == "a request failed"
    assert "the tables are damaged" in caplog.text, "the reason is"


async def raw(url: str, *lines: bytes) -> bytes:
    """What is answered to these lines."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    writer.write(b"\r\n".join((*lines, b"Connection: close", b"", b"")))
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer
