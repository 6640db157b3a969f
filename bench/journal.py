"""What an event costs a router that keeps a journal: CPU, of its own thread and of the journal's.

Beside it, in the same rounds, what writing the same events as lines of JSON would cost; and what a
router that has little to do spends on its journal.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from heliograph.journal.events import (
    EventColumns,
    JournalEvent,
    NmsgReceivedColumns,
    NmsgStoredColumns,
    PushAcceptedColumns,
    PushAttempted,
    PushPendingColumns,
    RouterStarted,
)
from heliograph.journal.hashing import Hasher
from heliograph.journal.identity import JournalIdentity
from heliograph.journal.journal import Journal
from heliograph.journal.storage.arrow import RecordedColumns, one_by_one
from heliograph.journal.storage.writer import JournalWriter

NOTIFICATIONS = 20_000
EVENTS = 5
ROUNDS = 7
BURST = 100
TOKENS = 4_000
KEY = bytes(32)
QUIET_RATE = 50
QUIET_SECONDS = 3.0


async def run() -> None:
    tokens = [os.urandom(24) for _ in range(TOKENS)]
    subscriptions = [os.urandom(24) for _ in range(TOKENS * 4)]
    journal: list[tuple[float, float, int]] = []
    lines: list[float] = []
    for _ in range(ROUNDS):
        nonces = [os.urandom(24) for _ in range(NOTIFICATIONS)]

        def burst(journal: Journal, start: int, nonces: list[bytes] = nonces) -> None:
            """Record what a notification router does: receive, store, attempt, accept."""
            numbers = range(start, start + BURST)
            rows = [
                (
                    nonces[number],
                    1e9,
                    number,
                    tokens[number % TOKENS],
                    subscriptions[number % len(subscriptions)],
                    "apns_prod",
                )
                for number in numbers
            ]
            notification, at, seq, token, subscription, provider = zip(*rows, strict=True)
            journal.record_columns(
                NmsgReceivedColumns(
                    notification=notification, at=at, own_server=True, smp_host="smp1.example.com"
                )
            )
            journal.record_columns(
                NmsgStoredColumns(
                    notification=notification,
                    token=token,
                    subscription=subscription,
                    provider=provider,
                    ntf_seq=seq,
                    own_server=True,
                    smp_host="smp1.example.com",
                )
            )
            mode = ["message" for _ in numbers]
            attempt = [1 for _ in numbers]
            journal.record_columns(
                PushPendingColumns(
                    token=token,
                    provider=provider,
                    mode=mode,
                    push=token,
                    attempt=attempt,
                    through=seq,
                )
            )
            for token_id in token:
                journal.record(_attempt(token_id))
            nothing = [None for _ in numbers]
            journal.record_columns(
                PushAcceptedColumns(
                    token=token,
                    provider=provider,
                    mode=mode,
                    push=token,
                    attempt=attempt,
                    through=seq,
                    notifications=[[nonce] for nonce in notification],
                    reason=nothing,
                    code=nothing,
                )
            )

        journal.append(_journal(burst))
        lines.append(_lines(burst))
    hot, all_in_all, sizes = zip(*journal, strict=True)
    ratios = [theirs / ours for theirs, ours in zip(lines, all_in_all, strict=True)]
    print(f"journal: CPU us an event, medians of {ROUNDS} rounds, lowest and highest")
    _print("the router's thread", hot)
    _print("all in all", all_in_all)
    _print("as lines of JSON", lines)
    _print("as lines of JSON / all in all", ratios)
    print(f"  {'bytes of a sealed segment':32} {sizes[0]:6d}")
    _print(f"at {QUIET_RATE} events/s, % of a core", [_quiet(tokens) * 100 for _ in range(3)])


def _print(name: str, values: Sequence[float]) -> None:
    print(f"  {name:32} {median(values):6.2f} ({min(values):.2f} to {max(values):.2f})")


def _attempt(token: bytes) -> PushAttempted:
    return PushAttempted(token=token, provider="apns_prod", mode="message", push=token, attempt=1)


def _journal(burst: Callable[[Journal, int], None]) -> tuple[float, float, int]:
    """CPU of the thread that notes and of the process, with the making of the events; size."""
    with tempfile.TemporaryDirectory() as place:
        writer = JournalWriter(Path(place), JournalIdentity("0" * 16, KEY), "ntf")
        writer.record(RouterStarted())
        while not writer.written:
            time.sleep(0.01)  # what is done only once is not what an event costs
        began = time.process_time()
        recording = 0.0
        for start in range(0, NOTIFICATIONS, BURST):
            at = time.thread_time()
            burst(writer, start)
            recording += time.thread_time() - at
            while writer.backlog > 20_000:
                time.sleep(0.005)
        writer.close()
        taken = time.process_time() - began
        assert writer.lost == 0
        size = sum(path.stat().st_size for path in Path(place).rglob("*.parquet"))
        count = NOTIFICATIONS * EVENTS
        return recording / count * 1e6, taken / count * 1e6, size // count


def _quiet(tokens: list[bytes]) -> float:
    """CPU of the process in a second of few events, one by one."""
    with tempfile.TemporaryDirectory() as place:
        writer = JournalWriter(Path(place), JournalIdentity("0" * 16, KEY), "ntf")
        writer.record(RouterStarted())
        while not writer.written:
            time.sleep(0.01)
        began, started = time.process_time(), time.monotonic()
        for number in range(round(QUIET_RATE * QUIET_SECONDS)):
            writer.record(_attempt(tokens[number]))
            time.sleep(max(0.0, started + (number + 1) / QUIET_RATE - time.monotonic()))
        taken = time.process_time() - began
        writer.close()
        assert writer.lost == 0
        return taken / QUIET_SECONDS


class _Lines(Journal):
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._hasher = Hasher(KEY)

    def record(self, event: JournalEvent, at: float | None = None) -> None:
        columns = {name: getattr(event, name) for name in event.names}
        for name, value in columns.items():
            hashes = self._hasher.of(name)
            if isinstance(value, bytes) and hashes is not None:
                columns[name] = hashes[value]
            elif isinstance(value, list) and hashes is not None:
                columns[name] = [hashes[item] for item in value]
        line = {"kind": event.kind, "at": at or time.time(), "mono": time.monotonic_ns(), **columns}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def record_columns(self, columns: EventColumns) -> None:
        for event, at, _ in one_by_one([RecordedColumns(columns, time.time(), 0, columns.size)]):
            self.record(event, at)

    def close(self) -> None:
        self._file.close()


def _lines(burst: Callable[[Journal, int], None]) -> float:
    with tempfile.TemporaryDirectory() as place:
        lines = _Lines(Path(place) / "journal.jsonl")
        began = time.process_time()
        for start in range(0, NOTIFICATIONS, BURST):
            burst(lines, start)
        lines.close()
        return (time.process_time() - began) / (NOTIFICATIONS * EVENTS) * 1e6
