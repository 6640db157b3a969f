"""Compare what two routers believe about the same subscriptions, and decide what to repair.

The join is on hashes that only the pair of routers can make; see `heliograph.actions.pairing`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, functions as f

from heliograph.actions.contract import ActionKind
from heliograph.actions.snapshots import SnapshotHeader, list_snapshots
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    RepairDecision,
    allowed_kinds,
)
from heliograph.pipeline.spark.files import IS_PATTERN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULE = "reconcile/1"
MAX_APART = 120 * 1_000_000
"""Microseconds between two snapshots that are compared."""
SURPLUS = "surplus"

ACTIONS = {
    "unsubscribed": ActionKind.RESUBSCRIBE,
    "ended": ActionKind.RESUBSCRIBE,
    "refused": ActionKind.RESUBSCRIBE,
    "failed": ActionKind.RESUBSCRIBE,
    "wrong_service": ActionKind.RESUBSCRIBE,
    "absent": ActionKind.RESUBSCRIBE,
    "orphan": ActionKind.DELETE_ORPHAN,
    SURPLUS: ActionKind.REPORT,
}
"""What follows from a finding."""

Snapshot = tuple[SnapshotHeader, Path]


@dataclass(frozen=True, slots=True)
class SnapshotPair:
    """The snapshots of a notification router, and of the messaging routers to compare it with."""

    ntf: Snapshot
    smp: tuple[Snapshot, ...]

    @property
    def window(self) -> tuple[int, int]:
        headers = [header for header, _ in (self.ntf, *self.smp)]
        return min(item.began_at for item in headers), max(item.ended_at for item in headers)

    @property
    def places(self) -> list[str]:
        return sorted({place for header, _ in self.smp for place in header.places})


def decide(
    spark: "SparkSession", folder: Path, settings: DecisionSettings, now: float
) -> Decisions:
    """Compare the newest snapshots of all routers that were taken together."""
    result = Decisions()
    pairs = choose_pairs(list_snapshots(folder), int(now * 1e6), int(settings.max_age * 1e6))
    if not pairs:
        result.stopped.append(
            f"no two routers have snapshots in {folder} that were taken together and are recent"
        )
    for pair in pairs:
        _decide_pair(spark, pair, settings, result)
    return result


def _decide_pair(
    spark: "SparkSession", pair: SnapshotPair, settings: DecisionSettings, result: Decisions
) -> None:
    header = pair.ntf[0]
    ntf, smp = read(spark, [pair.ntf]), read(spark, pair.smp)
    differences = compare(ntf, smp, pair.places).cache()
    try:
        counts: Mapping[str, int] = {
            row["finding"]: row["number"]
            for row in differences.groupBy("finding")
            .agg({"number": "sum"})
            .withColumnRenamed("sum(number)", "number")
            .collect()
        }
        result.found += [
            f"{header.router}: {finding} {count}, of {header.rows} subscriptions"
            for finding, count in sorted(counts.items())
        ]
        by_kind: Counter[ActionKind] = Counter()
        for finding, count in counts.items():
            by_kind[ACTIONS[finding]] += 1 if finding == SURPLUS else count
        allowed = allowed_kinds(header.router, by_kind, header.rows, settings, result)
        rows = differences.where(
            differences["finding"].isin([name for name, kind in ACTIONS.items() if kind in allowed])
        ).collect()
    finally:
        differences.unpersist()
    began, ended = pair.window
    for row in rows:
        kind = ACTIONS[row["finding"]]
        evidence = {
            "finding": row["finding"],
            "number": row["number"],
            "from": began,
            "until": ended,
            "subscriptions": header.rows,
        }
        result.decisions.append(
            RepairDecision(header.router, kind, row[kind.subject], evidence, RULE)
        )


def choose_pairs(snapshots: Iterable[Snapshot], now: int, max_age: int) -> list[SnapshotPair]:
    """Return the newest snapshots that were taken together, not older than `max_age`.

    Of a notification router the newest counts that has a partner; one without is left out.
    """
    recent = [item for item in snapshots if now - item[0].began_at <= max_age]
    routers = sorted({header.router for header, _ in recent if header.part == "ntf"})
    found = []
    for router in routers:
        own = [item for item in recent if item[0].router == router]
        for ntf in sorted(own, key=_began, reverse=True):
            smp = _partners(ntf[0], recent)
            if smp:
                found.append(SnapshotPair(ntf, smp))
                break
    return found


def _began(item: Snapshot) -> int:
    return item[0].began_at


def _partners(ntf: SnapshotHeader, recent: Sequence[Snapshot]) -> tuple[Snapshot, ...]:
    newest: dict[str, Snapshot] = {}
    for item in sorted(recent, key=_began):
        header = item[0]
        is_near = abs(header.began_at - ntf.began_at) <= MAX_APART
        if header.part == "smp" and is_near and {*header.places} & {*ntf.places}:
            newest[header.router] = item
    return tuple(newest.values())


def read(spark: "SparkSession", snapshots: Iterable[Snapshot]) -> DataFrame:
    return spark.read.option(IS_PATTERN, "false").parquet(*(str(path) for _, path in snapshots))


def compare(ntf: DataFrame, smp: DataFrame, places: list[str]) -> DataFrame:
    """Return a row for each difference: `finding`, `subscription`, `server`, and `number`.

    Only places of which there is a snapshot of the messaging router are compared. A subscription
    that the notification router itself knows not to be subscribed yet is no difference.
    """
    here = ntf.where(f.col("place").isin(places)).select(
        "place", "notifier", "subscription", "server", "state", f.col("service").alias("ours")
    )
    there = smp.select(
        "place",
        "notifier",
        f.col("is_subscribed"),
        f.col("service").alias("theirs"),
        f.lit(True).alias("is_there"),
    )
    joined = here.join(there, ["place", "notifier"], "left")
    found = joined.select(_finding().alias("finding"), "subscription", "server")
    rows = found.where("finding is not null").withColumn("number", f.lit(1).cast("long"))
    return rows.unionByName(_surplus(here, there))


def _finding() -> Column:
    state = f.col("state")
    is_there = f.coalesce(f.col("is_there"), f.lit(False))
    is_gone = state.isin("AUTH", "DELETED")
    is_idle = ~f.coalesce(f.col("is_subscribed"), f.lit(False))
    differs = f.col("ours").isNotNull() & ~f.col("ours").eqNullSafe(f.col("theirs"))
    return (
        f.when(~is_there & is_gone, "orphan")
        .when(~is_there & (state == "ACTIVE"), "absent")
        .when(~is_there, f.lit(None))
        .when(is_gone, "refused")
        .when((state == "END") & is_idle, "ended")
        .when((state == "ERR") & is_idle, "failed")
        .when((state == "ACTIVE") & differs, "wrong_service")
        .when((state == "ACTIVE") & is_idle, "unsubscribed")
    )


def _surplus(here: DataFrame, there: DataFrame) -> DataFrame:
    """Return, by messaging router, how many queues of our service are not ours any more."""
    ours = here.where("ours is not null").select("place", f.col("ours").alias("theirs"), "server")
    services = ours.groupBy("place", "theirs").agg(f.min("server").alias("server"))
    rest = there.join(here.select("place", "notifier"), ["place", "notifier"], "left_anti")
    return (
        rest.join(services, ["place", "theirs"], "inner")
        .groupBy("server")
        .agg(f.count(f.lit(1)).alias("number"))
        .select(
            f.lit(SURPLUS).alias("finding"),
            f.lit(None).cast("string").alias("subscription"),
            "server",
            "number",
        )
    )
