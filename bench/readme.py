"""The README's table "How it compares": medians of several runs over PostgreSQL, and their spread.

`BENCH_RUNS` sets their number. Run it on an idle machine.
"""

import os
from statistics import median
from typing import NamedTuple

from bench import ntf
from bench.harness import SAMPLES

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
RESUBSCRIPTIONS = 50_000


class Row(NamedTuple):
    """A case with the reference's figure, and the names and units of our samples."""

    case: str
    reference: str
    samples: tuple[tuple[str, str], ...]


ROWS = (
    Row("NTF PING, 40 connections", "83 us", (("PING, 40 connections", " us"),)),
    Row(
        "TCHK, Ed25519 / X25519",
        "607 / 662 us",
        tuple((f"TCHK {name}, 40 connections", " us") for name in ("Ed25519", "X25519")),
    ),
    Row("TNEW", "1,750 us", (("TNEW", " us"),)),
    Row("SNEW", "3,740 us", (("SNEW, one connection", " us"),)),
    Row(
        "notification to accepted push, as fast as possible",
        "2,800 us, 199/s",
        (
            ("NMSG to accepted push, flood", " us"),
            ("NMSG to accepted push, flood, per second", "/s"),
        ),
    ),
    *(
        Row(
            f"the same at {rate}/s, p50 / p99",
            reference,
            tuple((f"latency at {rate}/s, {name}", " ms") for name in ("p50", "p99")),
        )
        for rate, reference in ((50, "4.4 / 17 ms"), (200, "629 / 1,175 ms"))
    ),
    Row(
        f"resubscription of {RESUBSCRIPTIONS:,} queues after a restart",
        "13.9 s",
        (("resubscription", " s"),),
    ),
)


async def run() -> None:
    SAMPLES.clear()
    ntf.RESUBSCRIPTIONS = RESUBSCRIPTIONS - ntf.TOKENS * ntf.SUBSCRIPTIONS_EACH
    for _ in range(RUNS):
        await ntf.run_postgresql()
    print(f"\nHeliograph: median of {RUNS} runs, with the lowest and the highest\n")
    print("| case | reference | Heliograph |\n| --- | --- | --- |")
    for row in ROWS:
        ours = " / ".join(_figure(SAMPLES[name], unit) for name, unit in row.samples)
        print(f"| {row.case} | {row.reference} | {ours} |")


def _figure(values: list[float], unit: str) -> str:
    digits = 0 if min(values) >= 20 else 1
    texts = [f"{value:,.{digits}f}" for value in (median(values), min(values), max(values))]
    return f"{texts[0]}{unit} ({texts[1]} to {texts[2]})"
