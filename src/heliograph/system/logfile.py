"""A log of bounded size: when it is full it becomes NAME.1, and an older one goes."""

from pathlib import Path

MAX_BYTES = 8_000_000


class LogFile:
    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        if self._file.tell() + len(data) > self._max_bytes:
            self._file.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self._file = self.path.open("ab", buffering=0)
        self._file.write(data)

    def close(self) -> None:
        self._file.close()


def tail(path: Path, lines: int, begin: int = 0) -> list[str]:
    """The last lines of a log, after a place in it; none if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(begin, file.tell() - 200 * lines - 4096))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-lines:] if lines else []
