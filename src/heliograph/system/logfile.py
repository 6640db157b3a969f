"""Logs of bounded size: a full one becomes NAME.1 and replaces the older one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path

from heliograph.runtime.files import private_opener

__all__ = ["LogFile", "merge", "tail"]

_TIME = re.compile(r'(?:\{"at": ")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z)')

MAX_BYTES = 8_000_000


class LogFile:
    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._file = self._open()

    def write(self, data: bytes) -> None:
        if self._file.tell() + len(data) > self._max_bytes:
            self._file.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self._file = self._open()
        self._file.write(data)

    def _open(self) -> FileIO:
        return open(self.path, "ab", buffering=0, opener=private_opener)

    def close(self) -> None:
        self._file.close()


def tail(path: Path, lines: int, begin: int = 0) -> list[str]:
    """Return the last lines of a log after the offset `begin`; none if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(begin, file.tell() - 200 * lines - 4096))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-lines:] if lines else []


def merge(logs: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield (name, line) of several logs by time; a line without a time follows the one before."""
    found = []
    for name, lines in logs.items():
        at = ""
        for line in lines:
            if (match := _TIME.match(line)) is not None:
                at = match[1]
            found.append((at, name, line))
    for _, name, line in sorted(found, key=lambda item: item[0]):
        yield name, line
