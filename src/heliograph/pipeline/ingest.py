"""Segments to clean events: checked against the schema, each once, whatever the order.

An event is known by its router, boot and sequence number, which have no gaps. So "seen before" is
a few intervals for each run of a router, and whether a batch has anything twice is one aggregation
to bit masks, exact and small. Only a batch that has is deduplicated row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from heliograph.journal.schema import COLUMNS, KINDS, REQUIRED, SCHEMA_VERSION
from heliograph.pipeline import intervals
from heliograph.pipeline.columns import EVENTS
from heliograph.pipeline.intervals import Pair
from heliograph.pipeline.routers import keep_greatest
from heliograph.pipeline.tables import Taken

BITS = 64
"""Sequence numbers of one mask."""

_OPTIONAL = tuple(name for name in COLUMNS if name not in REQUIRED)
_BIT = {name: 1 << index for index, name in enumerate(_OPTIONAL)}
_SHIFT = len(_OPTIONAL)


def checked(events: DataFrame) -> DataFrame:
    """With a column `problem`: what is wrong with an event, or null.

    As `heliograph.journal.schema.violations`, and what only the pipeline can ask.
    """
    everything = (1 << _SHIFT) - 1
    rules, present = f.col("_rules"), f.col("_present")
    found = events.select(*EVENTS.names, _rules().alias("_rules"), _present().alias("_present"))
    masks = found.select(
        *EVENTS.names,
        rules.isNotNull().alias("_known"),
        f.shiftright(rules, _SHIFT).bitwiseAND(f.bitwise_not(present)).alias("_missing"),
        present.bitwiseAND(f.bitwise_not(rules.bitwiseAND(f.lit(everything)))).alias("_surplus"),
    )
    return masks.select(*EVENTS.names, _problem().alias("problem"))


def _problem() -> Column:
    incomplete = f.concat_ws(
        "; ", *(f.when(f.col(name).isNull(), f"{name}: missing") for name in REQUIRED)
    )
    any_missing = f.greatest(*(f.col(name).isNull().cast("int") for name in REQUIRED)) == 1
    version = f.col("schema")
    expected_id = f.concat_ws("-", "router", f.col("boot").cast("string"), f.col("seq"))
    texts = f.concat_ws(
        "; ", _of_bits("_missing", ": missing in "), _of_bits("_surplus", ": not a column of ")
    )
    return (
        f.when(any_missing, incomplete)
        .when(
            version != SCHEMA_VERSION,
            f.concat(f.lit("schema: version "), version, f.lit(" is not known here")),
        )
        .when(f.col("seq") < 1, f.lit("seq: less than 1"))
        .when(f.col("event_id") != expected_id, f.lit("event_id: is not ROUTER-BOOT-SEQ"))
        .when(~f.col("_known"), f.lit("kind: unknown"))
        .when((f.col("_missing") != 0) | (f.col("_surplus") != 0), texts)
    )


def _rules() -> Column:
    """By kind: the bits of the columns it has, then of those it may have. Null if unknown."""
    kind = f.col("kind")
    # The most frequent first, because they are tried in order.
    ordered = sorted(KINDS.values(), key=lambda item: not item.name.startswith(("n", "push")))
    result: Column | None = None
    for item in ordered:
        has = sum(_BIT[name] for name in item.has if name in _BIT)
        may = sum(_BIT[name] for name in {*item.has, *item.may_have} if name in _BIT)
        value = f.lit((has << _SHIFT) | may).cast("long")
        here = kind == item.name
        result = f.when(here, value) if result is None else result.when(here, value)
    assert result is not None  # noqa: S101
    return result


def _present() -> Column:
    bits = [
        f.when(f.col(name).isNull(), f.lit(0).cast("long")).otherwise(f.lit(bit).cast("long"))
        for name, bit in _BIT.items()
    ]
    return reduce(Column.bitwiseOR, bits)


def _of_bits(column: str, text: str) -> Column:
    """Which columns the bits stand for, in words."""
    names = ", ".join(f"'{name}{text}'" for name in _OPTIONAL)
    chosen = f.expr(f"filter(array({names}), (name, i) -> (shiftright({column}, i) & 1) = 1)")
    return f.transform(chosen, lambda name: f.concat(name, f.col("kind")))


def quarantined(events: DataFrame) -> DataFrame:
    """Of `checked` events those that are wrong, whole, with the reason."""
    raw = f.to_json(f.struct(*EVENTS.names))
    return events.where(f.col("problem").isNotNull()).select(
        "event_id", f.col("problem").alias("reason"), raw.alias("raw")
    )


def runs(events: DataFrame) -> DataFrame:
    """Of `checked` events: per run which sequence numbers, and what routers say of themselves."""
    wrong = f.col("problem").isNotNull()
    kind, at = f.col("kind"), f.unix_micros("at")
    recovered = kind == "router_recovered"
    return events.groupBy(
        wrong.alias("wrong"),
        f.when(~wrong, f.col("router")).alias("router"),
        f.when(~wrong, f.col("part")).alias("part"),
        f.when(~wrong, f.col("boot")).alias("boot"),
        f.when(~wrong, f.expr(f"(seq - 1) div {BITS}")).alias("block"),
    ).agg(
        f.count("*").alias("rows"),
        f.bit_or(f.when(~wrong, f.expr(f"shiftleft(1L, cast((seq - 1) % {BITS} as int))"))).alias(
            "mask"
        ),
        f.max(at).alias("last_at"),
        f.max(f.when(recovered, at)).alias("recovered_at"),
        f.max(f.when(recovered, f.coalesce("through", f.lit(0)))).alias("recovered_through"),
        f.max(f.when(kind == "router_stopped", at)).alias("stopped_at"),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a batch has, by `ROUTER/BOOT`."""

    rows: int
    wrong: int
    numbers: dict[str, list[Pair]]
    repeated: dict[str, list[Pair]]
    """Of `numbers` those that were seen before."""
    routers: dict[str, dict[str, dict[str, int]]]
    parts: dict[str, str]

    @property
    def new(self) -> int:
        every = sum(map(intervals.count, self.numbers.values()))
        return every - sum(map(intervals.count, self.repeated.values()))

    @property
    def has_duplicates(self) -> bool:
        return self.new < self.rows - self.wrong


def summarize(rows: Sequence[Row], seen: Taken) -> Summary:
    """Of what `runs` found."""
    total = wrong = 0
    found: dict[str, list[Pair]] = {}
    routers: dict[str, dict[str, dict[str, int]]] = {}
    parts: dict[str, str] = {}
    for row in rows:
        total += row["rows"]
        if row["wrong"]:
            wrong += row["rows"]
            continue
        key = f"{row['router']}/{row['boot']}"
        found.setdefault(key, []).extend(_of_mask(row["mask"], row["block"] * BITS + 1))
        parts[row["router"]] = row["part"]
        of_boot = routers.setdefault(row["router"], {}).setdefault(str(row["boot"]), {})
        keep_greatest(of_boot, {name: row[name] for name in _RUN_FACTS})
    numbers = {key: intervals.merge(pairs) for key, pairs in found.items()}
    repeated = {
        key: common
        for key, pairs in numbers.items()
        if (common := intervals.overlap(pairs, seen.get(key, ())))
    }
    return Summary(total, wrong, numbers, repeated, routers, parts)


def _of_mask(mask: int, first: int) -> list[Pair]:
    if mask == -1:  # the usual one: all of them
        return [(first, first + BITS - 1)]
    return intervals.of_bitmap(mask.to_bytes(BITS // 8, "little", signed=True), first)


_RUN_FACTS = ("last_at", "recovered_at", "recovered_through", "stopped_at")


def clean(events: DataFrame, summary: Summary) -> DataFrame:
    """Of `checked` events those that are right, each once, without those seen before."""
    good = events.where(f.col("problem").isNull()).drop("problem")
    if not summary.has_duplicates:
        return good
    good = good.dropDuplicates(["router", "boot", "seq"])
    before = [
        (*_run(key), low, high) for key, pairs in summary.repeated.items() for low, high in pairs
    ]
    if not before:
        return good
    schema = "seen_router string, seen_boot long, low long, high long"
    seen = f.broadcast(good.sparkSession.createDataFrame(before, schema))
    again = (
        (f.col("router") == f.col("seen_router"))
        & (f.col("boot") == f.col("seen_boot"))
        & f.col("seq").between(f.col("low"), f.col("high"))
    )
    return good.join(seen, again, "left_anti")


def _run(key: str) -> tuple[str, int]:
    router, _, boot = key.rpartition("/")
    return router, int(boot)
