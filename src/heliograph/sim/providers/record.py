"""Record of received requests: the newest in memory, optionally all in a file of JSON lines.

It contains what a provider sees, including device tokens: never use it with real ones. Only a
digest of authorizations is kept.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    seq: int
    time: float
    connection: int
    token: str
    accepted: bool
    status: int | None
    """The status of the answer; None if there was none."""

    reason: str | None
    headers: Mapping[str, str]
    body: str
    """Text unchanged, bytes in base64url."""


class Record:
    def __init__(self, file: Path | None = None, limit: int = LIMIT) -> None:
        self.accepted = 0
        self.rejected = 0
        self._entries: deque[Entry] = deque(maxlen=limit)
        self._file: TextIO | None = None if file is None else file.open("a", buffering=1)
        self._waiting: dict[str, list[asyncio.Future[Entry]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, **values: Any) -> Entry:  # fields of Entry
        headers = dict(values.pop("headers"))
        if "authorization" in headers:
            headers["authorization"] = digest(headers["authorization"])
        entry = Entry(seq=self.accepted + self.rejected + 1, headers=headers, **values)
        if entry.accepted:
            self.accepted += 1
        else:
            self.rejected += 1
        self._entries.append(entry)
        if self._file is not None:
            self._file.write(json.dumps(asdict(entry), separators=(",", ":")) + "\n")
        if entry.accepted:
            for news in self._waiting.pop(entry.token, ()):
                if not news.done():
                    news.set_result(entry)
        return entry

    def select(
        self, *, after: int = 0, token: str | None = None, accepted: bool | None = None
    ) -> list[Entry]:
        """Return the matching entries, oldest first."""
        found = []
        for entry in reversed(self._entries):
            if entry.seq <= after:
                break
            if token in (None, entry.token) and accepted in (None, entry.accepted):
                found.append(entry)
        return found[::-1]

    async def wait_for(self, token: str, after: int, within: float) -> list[Entry]:
        """Return the pushes to a device; wait up to `within` seconds for the first."""
        found = self.select(after=after, token=token, accepted=True)
        if found or not within:
            return found
        news: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(token, [])
        waiting.append(news)
        try:
            async with asyncio.timeout(within):
                return [await news]
        except TimeoutError:
            return []
        finally:
            if news in waiting:
                waiting.remove(news)
            if not waiting and self._waiting.get(token) is waiting:
                del self._waiting[token]

    def clear(self) -> None:
        """Clear the entries in memory; their numbers continue."""
        self._entries.clear()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]
