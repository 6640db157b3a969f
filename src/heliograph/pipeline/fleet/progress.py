"""How far a wake is, and what came of it: by router, from journals."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import DataFrame, functions as f

from heliograph.actions.table import open_table
from heliograph.actions.wakes import MEMBERS
from heliograph.pipeline.spark.files import IS_PATTERN
from heliograph.pipeline.tables.storage import Storage

if TYPE_CHECKING:
    from heliograph.pipeline.runner import Pipeline

__all__ = ["RouterProgress", "read_progress"]

_SCHEMA = "position long, token string, wake string, router string"


@dataclass(frozen=True, slots=True)
class RouterProgress:
    """`accepted` tokens got a wake-up since the wake began; owners of `returned` were seen since.

    A router's journal counts to the day when an owner is seen.
    """

    router: str
    tokens: int
    status: str
    woken: int
    accepted: int
    returned: int


def read_progress(pipeline: "Pipeline", place: str | Path, wake: str) -> list[RouterProgress]:
    """Return the progress at each router that has tokens of a wake."""
    members = _members(pipeline, place, wake)
    if members is None:
        return []
    events = pipeline.read("events").where(f.col("kind") == "wake_progressed")
    last = (
        events.where(f.col("wake") == wake)
        .groupBy("router")
        .agg(
            f.max_by(f.struct("status", "count"), f.struct("boot", "seq")).alias("last"),
            f.min("at").alias("begun_at"),
        )
    )
    tokens = pipeline.tokens().select("router", "token", "woken_at", "seen_at")
    rows = members.join(last, "router", "left").join(tokens, ["router", "token"], "left")
    counted = rows.groupBy("router").agg(
        f.count(f.lit(1)).alias("tokens"),
        f.first("last").alias("last"),
        f.count(f.when(f.col("woken_at") >= f.col("begun_at"), 1)).alias("accepted"),
        f.count(f.when(f.col("seen_at") >= f.col("begun_at"), 1)).alias("returned"),
    )
    return [
        RouterProgress(
            row["router"],
            row["tokens"],
            "waiting" if row["last"] is None else row["last"]["status"],
            0 if row["last"] is None else row["last"]["count"],
            row["accepted"],
            row["returned"],
        )
        for row in counted.orderBy("router").collect()
    ]


def _members(pipeline: "Pipeline", place: str | Path, wake: str) -> DataFrame | None:
    table = open_table(place, MEMBERS)
    files = [] if table is None else table.file_uris(file_pruning_predicate=[("wake", "=", wake)])
    if not files:
        return None
    storage = Storage(place)
    if storage.local is not None:
        files = [unquote(path) for path in files]  # Spark takes `%20` literally
    reader = pipeline.spark.read.schema(_SCHEMA).option("basePath", storage.below(MEMBERS))
    return reader.option(IS_PATTERN, "false").parquet(*files).select("router", "token")
