import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from heliograph.runtime import logs

logger = logging.getLogger("heliograph.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.captureWarnings(False)


def logged(format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.set_up(format, level, stream)
    return stream


def written(stream: io.StringIO) -> str:
    logs.flush()
    return stream.getvalue()


def fail() -> None:
    raise ValueError("connecting to postgresql://user:hunter2@host/db failed")


def test_text() -> None:
    stream = logged("text")
    logger.info("it %s", "happened", extra={"count": 3})
    logger.debug("too quiet")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO heliograph\.test: it happened count=3\n",
        written(stream),
    )


def test_json() -> None:
    stream = logged("json", "debug")
    logger.debug("one\ntwo", extra={"count": 3})
    try:
        fail()
    except ValueError:
        logger.exception("it failed")
    first, second = map(json.loads, written(stream).splitlines())
    assert first.pop("at").endswith("Z")
    assert first == {
        "level": "debug",
        "logger": "heliograph.test",
        "message": "one\ntwo",
        "count": 3,
    }
    assert second["message"] == "it failed"
    assert "ValueError" in second["error"]


@pytest.mark.parametrize("format", logs.FORMATS)
def test_passwords_in_urls_are_taken_out(format: str) -> None:
    stream = logged(format)
    logger.error("smp://AbC-_=:hunter2@host:5223 and http://[::1]:80/@ stay otherwise")
    try:
        fail()
    except ValueError:
        logger.exception("it failed")
    text = written(stream)
    assert "hunter2" not in text
    assert "smp://AbC-_=:***@host:5223" in text
    assert "postgresql://user:***@host/db" in text


def test_a_message_cannot_forge_a_line() -> None:
    stream = logged("text")
    logger.info("%s", "a\n2026-01-01 ERROR b\x1b[31m")
    assert written(stream).count("\n") == 1
    assert "\\x0a" in written(stream)
    assert "\x1b" not in written(stream)


def test_set_up_replaces_what_was_there() -> None:
    first, second = logged("text"), logged("text")
    logger.info("once")
    assert written(first) == ""
    assert written(second).count("once") == 1


async def test_fields_of_a_task() -> None:
    stream = logged("json")

    async def work(name: str) -> None:
        with logs.fields(smp=name):
            await asyncio.sleep(0)
            logger.info("it works", extra={"count": 1})

    await asyncio.gather(work("a"), work("b"))
    logger.info("done")
    events = [json.loads(line) for line in written(stream).splitlines()]
    assert [event.get("smp") for event in events] == ["a", "b", None]
    assert events[0]["count"] == 1
