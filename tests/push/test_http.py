import asyncio
from collections.abc import AsyncIterator
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import pytest
import wreq

from heliograph.push.http import (
    MAX_ANSWER,
    MAX_RETRY_AFTER,
    Connections,
    HttpAnswer,
    HttpSettings,
    NoAnswer,
)
from heliograph.push.ids import short_id
from heliograph.runtime.authority import Authority
from heliograph.sim.providers.http2 import Http2Server, HttpReply, HttpRequest


def answer(**headers: str) -> HttpAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(503, b"", wreq.HeaderMap(named))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("9" * 20, MAX_RETRY_AFTER),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER),
        ("Fri, 99 Dec 9999 23:59:59 GMT", None),
        (f"Fri, 01 Jan {'9' * 20} 00:00:00 GMT", None),
        (f"Fri, 01 Jan 2027 00:00:00 +{'9' * 20}", None),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert answer(retry_after=value).retry_after == seconds


def test_retry_after_a_date() -> None:
    seconds = answer(retry_after=formatdate(time() + 60, usegmt=True)).retry_after
    assert seconds is not None
    assert 50 < seconds <= 60


def test_headers() -> None:
    assert answer(a="b").header("A") == "b"
    assert answer().header("a") is None
    assert answer().retry_after is None


@pytest.mark.parametrize(
    ("text", "size", "same"),
    [("abc_-09", 32, True), ("a" * 32, 32, True), ("a" * 33, 32, False), ("a b", 32, False)],
)
def test_short_ids(text: str, size: int, same: bool) -> None:
    result = short_id(text, size)
    assert (result == text) is same
    assert 0 < len(result) <= size
    assert result == short_id(text, size) != short_id(text + "x", size)


# Against a server


class Server:
    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.reply = HttpReply()

    def handle(self, request: HttpRequest) -> HttpReply:
        self.requests.append(request)
        return self.reply


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[Server, str, HttpSettings]]:
    authority = Authority(tmp_path)
    handler = Server()
    http = Http2Server(handler.handle, authority.server_context("127.0.0.1"))
    port = await http.start("127.0.0.1", 0)
    yield handler, f"https://127.0.0.1:{port}/", HttpSettings(ca=authority.file.read_bytes())
    await http.close()


async def test_only_the_start_of_a_long_answer_is_kept(server: Any) -> None:
    handler, url, settings = server
    handler.reply = HttpReply(400, body=b"x" * (MAX_ANSWER + 1))
    connections = Connections(settings)
    for read in (False, True):
        got = await connections.post(url, {}, b"", read=read)
        assert got.body == b"x" * MAX_ANSWER
    connections.close()


async def test_bodies_are_read_if_wanted(server: Any) -> None:
    handler, url, settings = server
    handler.reply = HttpReply(200, body=b"text")
    connections = Connections(settings)
    assert (await connections.post(url, {}, b"", read=True)).body == b"text"
    assert (await connections.post(url, {}, b"")).body == b""
    connections.close()


async def test_what_else_is_sent(server: Any) -> None:
    """Nothing that says more of us than needed."""
    handler, url, settings = server
    connections = Connections(settings)
    await connections.post(url, {"x": "y"}, b"body")
    connections.close()
    [request] = handler.requests
    assert request.headers.keys() - {":authority", ":scheme"} <= {"x", "content-length", "accept"}
    assert request.body == b"body"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(server: Any, status: int) -> None:
    handler, url, settings = server
    handler.reply = HttpReply(status, {"location": f"{url}elsewhere"})
    connections = Connections(settings)
    assert (await connections.post(url, {}, b"")).status == status
    assert len(handler.requests) == 1
    connections.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "nonsense", "https://", "https://a:99999/"])
async def test_only_https(url: str) -> None:
    connections = Connections(HttpSettings())
    with pytest.raises(NoAnswer):
        await connections.post(url, {}, b"")
    connections.close()


async def test_headers_that_cannot_be_sent(server: Any) -> None:
    handler, url, settings = server
    connections = Connections(settings)
    with pytest.raises(NoAnswer):
        await connections.post(url, {"a": "b\r\nc: d"}, b"")
    assert handler.requests == []
    connections.close()


async def test_cancelled_before_it_is_closed(server: Any) -> None:
    handler, url, settings = server
    handler.reply = HttpReply(delay=10)
    connections = Connections(settings)
    task = asyncio.create_task(connections.post(url, {}, b""))
    await asyncio.sleep(0.1)
    task.cancel()
    connections.close()
    with pytest.raises(asyncio.CancelledError):
        await task
