"""What an event costs a router that keeps a journal: CPU, of its own thread and of the journal's.

Beside it, in the same rounds, what writing the same events as lines of JSON would cost; and what a
router that has little to do spends on its journal.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heliograph.journal.arrow import one_by_one
from heliograph.journal.events import Hasher, Journal, Many
from heliograph.journal.identity import JournalIdentity
from heliograph.journal.writer import JournalWriter

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
            """As a notification router does: received, stored, owed, tried, accepted."""
            numbers = range(start, start + BURST)
            own = {"own_server": True, "smp_host": "smp1.example.com"}
            fated = [
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
            notification, at, seq, token, subscription, provider = zip(*fated, strict=True)
            journal.many("nmsg_received", BURST, notification=notification, at=at, **own)
            journal.many(
                "nmsg_stored",
                BURST,
                notification=notification,
                token=token,
                subscription=subscription,
                provider=provider,
                ntf_seq=seq,
                **own,
            )
            push = {
                "token": token,
                "provider": provider,
                "mode": ["message" for _ in numbers],
                "push": token,
                "attempt": [1 for _ in numbers],
            }
            journal.many("push_owed", BURST, **push, through=seq)
            for token_id in token:
                journal(
                    "push_attempted",
                    token=token_id,
                    provider="apns_prod",
                    mode="message",
                    push=token_id,
                    attempt=1,
                )
            carried = [[nonce] for nonce in notification]
            journal.many("push_accepted", BURST, **push, through=seq, notifications=carried)

        journal.append(_journal(burst))
        lines.append(_lines(burst))
    hot, all_in_all, size = min(journal, key=lambda taken: taken[1])
    print("journal: CPU us an event, the quietest of", ROUNDS, "rounds")
    print(f"  the router's thread           {hot:6.2f}")
    print(f"  all in all                    {all_in_all:6.2f}")
    print(f"  as lines of JSON              {min(lines):6.2f}  ({min(lines) / all_in_all:.1f} x)")
    print(f"  bytes of a sealed segment     {size:6d}")
    share = min(_quiet(tokens) for _ in range(3))
    print(f"  at {QUIET_RATE} events/s, of a core      {share * 100:6.2f} %")


def _journal(burst: Callable[[Journal, int], None]) -> tuple[float, float, int]:
    """CPU of the thread that notes and of the process, with the making of the events; size."""
    with tempfile.TemporaryDirectory() as place:
        writer = JournalWriter(Path(place), JournalIdentity("0" * 16, KEY), "ntf")
        writer("router_started")
        while not writer.written:
            time.sleep(0.01)  # what is done only once is not what an event costs
        began = time.process_time()
        noting = 0.0
        for start in range(0, NOTIFICATIONS, BURST):
            at = time.thread_time()
            burst(writer, start)
            noting += time.thread_time() - at
            while writer.backlog > 20_000:
                time.sleep(0.005)
        writer.close()
        taken = time.process_time() - began
        assert writer.lost == 0
        size = sum(path.stat().st_size for path in Path(place).rglob("*.parquet"))
        count = NOTIFICATIONS * EVENTS
        return noting / count * 1e6, taken / count * 1e6, size // count


def _quiet(tokens: list[bytes]) -> float:
    """CPU of the process in a second of few events, one by one."""
    with tempfile.TemporaryDirectory() as place:
        writer = JournalWriter(Path(place), JournalIdentity("0" * 16, KEY), "ntf")
        writer("router_started")
        while not writer.written:
            time.sleep(0.01)
        began, started = time.process_time(), time.monotonic()
        for number in range(round(QUIET_RATE * QUIET_SECONDS)):
            writer(
                "push_attempted",
                token=tokens[number],
                provider="apns_prod",
                mode="message",
                push=tokens[number],
                attempt=1,
            )
            time.sleep(max(0.0, started + (number + 1) / QUIET_RATE - time.monotonic()))
        taken = time.process_time() - began
        writer.close()
        assert writer.lost == 0
        return taken / QUIET_SECONDS


class _Lines(Journal):
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._hasher = Hasher(KEY)

    def __call__(self, kind: str, /, at: float | None = None, **columns: object) -> None:
        for name, value in columns.items():
            hashes = self._hasher.of(name)
            if isinstance(value, bytes) and hashes is not None:
                columns[name] = hashes[value]
            elif isinstance(value, list) and hashes is not None:
                columns[name] = [hashes[item] for item in value]
        event = {"kind": kind, "at": at or time.time(), "mono": time.monotonic_ns(), **columns}
        self._file.write(json.dumps(event, separators=(",", ":")) + "\n")

    def many(self, kind: str, count: int, /, **columns: Any) -> None:
        for _, at, _, found in one_by_one([Many(kind, time.time(), 0, count, columns)]):
            self(kind, at, **found)

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
