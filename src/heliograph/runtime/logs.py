"""Logs of a router process: one event per line, as text or JSON, on standard error.

Callers must not log keys, tokens, queue IDs or addresses of clients. Passwords in URLs are removed
here as well, because exceptions of drivers quote them.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

from heliograph.documents import JsonObject
from heliograph.runtime.log_writer import BackgroundHandler

__all__ = ["FORMATS", "LEVELS", "JsonFormatter", "TextFormatter", "fields", "flush", "set_up"]

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s@]+@", re.IGNORECASE)
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}
_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("fields of logs", default={})  # noqa: B039 - it is never changed
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """Format records as `2026-01-02T03:04:05.678Z INFO heliograph.smp: what happened key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_CONTROL)
        extra = "".join(f" {key}={value}" for key, value in _extra(record).items())
        line = f"{_at(record)} {record.levelname} {record.name}: {message}{extra}"
        error = _error(self, record)
        return _redact(f"{line}\n{error}" if error else line)


class JsonFormatter(logging.Formatter):
    """One object per line: at, level, logger, message, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _redact(record.getMessage()),
            **_extra(record),
        }
        error = _error(self, record)
        if error:
            event["error"] = _redact(error)
        return json.dumps(event, default=str, ensure_ascii=False)


def set_up(format: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to standard error; replace earlier handlers."""
    handler = BackgroundHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for former in root.handlers:
        if isinstance(former, BackgroundHandler):
            former.close()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # They log every request and timer, and addresses of peers.
    for chatty in ("aiohttp", "asyncio", "py4j"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)


@contextmanager
def fields(**values: str) -> Iterator[None]:
    """Add fields, such as a server, to everything that this task logs inside the context."""
    token = _FIELDS.set({**_FIELDS.get(), **values})
    try:
        yield
    finally:
        _FIELDS.reset(token)


def flush() -> None:
    """Flush the log, before a process exits immediately."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def _at(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _extra(record: logging.LogRecord) -> JsonObject:
    given = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    return {**_FIELDS.get(), **given}


def _error(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return formatter.formatException(record.exc_info)
    return ""


def _redact(text: str) -> str:
    return _PASSWORD.sub(r"\1:***@", text)
