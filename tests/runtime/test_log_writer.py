import io
import json
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from heliograph.runtime.log_writer import BackgroundHandler, dropped_lines
from heliograph.runtime.logs import JsonFormatter


def _record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def test_a_pipe_that_nobody_reads_blocks_nobody_and_the_loss_is_counted() -> None:
    reading, writing = os.pipe()
    before = dropped_lines()
    with open(writing, "w") as stream:
        handler = BackgroundHandler(stream, max_queued=200_000)
        started = time.monotonic()
        for number in range(10_000):
            handler.handle(_record(f"{number} " + "x" * 100))
        assert time.monotonic() - started < 60
        dropped = dropped_lines() - before
        assert 1_000 < dropped < 10_000
        with open(reading, "rb", buffering=0) as pipe:
            received = b""
            while received.count(b"x\n") < 10_000 - dropped:
                received += pipe.read(65536)
            handler.handle(_record("at last"))
            while b"at last" not in received:
                received += pipe.read(65536)
            handler.close()
    lines = received.decode().splitlines()
    assert lines[0].startswith("0 ")
    # The pipe accepts some lines before it is full, so lines may be dropped more than once.
    reports = [
        line for line in lines if line.endswith(" log lines were dropped: nobody read them in time")
    ]
    assert sum(int(line.split()[0]) for line in reports) == dropped
    assert lines[-1] == "at last"


def test_lines_are_written_in_order_when_flushed() -> None:
    stream = io.StringIO()
    handler = BackgroundHandler(stream)
    for number in range(100):
        handler.handle(_record(str(number)))
    handler.flush()
    assert stream.getvalue().split() == [str(number) for number in range(100)]
    handler.close()


def test_a_stream_that_was_closed(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    stream = (tmp_path / "log").open("w")
    handler = BackgroundHandler(stream)
    stream.close()
    handler.handle(_record("lost"))
    handler.flush()
    handler.close()
    assert {*threading.enumerate()} <= before


def test_a_record_that_cannot_be_formatted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)
    stream = io.StringIO()
    handler = BackgroundHandler(stream)
    handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("text",)}))
    handler.handle(_record("next"))
    handler.flush()
    handler.close()
    assert stream.getvalue() == "next\n"
    assert "Logging error" in capsys.readouterr().err


class _SlowStream(io.StringIO):
    """A stream that writes nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.released.wait(10)
        return super().write(text)


def test_every_line_of_a_json_log_is_an_object() -> None:
    stream = _SlowStream()
    handler = BackgroundHandler(stream, max_queued=200)
    handler.setFormatter(JsonFormatter())
    for text in ("first", "x" * 200, "x" * 200):
        handler.handle(_record(text))
    stream.released.set()
    handler.flush()
    handler.handle(_record("last"))
    handler.flush()
    handler.close()
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == ["first", "2 log lines were dropped: nobody read them in time", "last"]
