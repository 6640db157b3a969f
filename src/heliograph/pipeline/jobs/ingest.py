"""Turn segments into clean events: checked against the schema, each once, in any order.

An event is identified by its router, boot and sequence number, which have no gaps. So "seen before"
is a few intervals for each run of a router, and one aggregation to bit masks, exact and small,
finds out if a batch has duplicates. Only such a batch is deduplicated row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce

from pyspark.sql import Column, DataFrame, Row, functions as f, types as t

from heliograph.journal.schema import COLUMNS, KINDS, REQUIRED, SCHEMA_VERSION, Kind
from heliograph.pipeline import intervals
from heliograph.pipeline.intervals import IntervalsByRun, Pair
from heliograph.pipeline.jobs.routers import keep_greatest
from heliograph.pipeline.spark.columns import EVENTS
from heliograph.pipeline.spark.local import local

BITS = 64
"""Sequence numbers of one mask."""
END_OF_DAYS = 253_402_214_400_000_000
"""The last day of the year 9999, in microseconds: Python and Delta have no later one."""

_OPTIONAL = tuple(name for name in COLUMNS if name not in REQUIRED)
_BIT = {name: 1 << index for index, name in enumerate(_OPTIONAL)}
_MAY = len(_OPTIONAL)


def checked(events: DataFrame) -> DataFrame:
    """Add the column `wrong`, and the columns from which `problem` makes a reason.

    Checks the same as `heliograph.journal.schema.violations`, and what only the pipeline can. The
    columns of a kind are bits of a number, because every event is checked.
    """
    ruled, judged = _checks()
    return events.select(*ruled).select(*judged)


@cache
def _checks() -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Build the checks once: they cost a thousand messages to Java, too many for each batch."""
    columns = tuple(map(f.col, EVENTS.names))
    present = reduce(
        Column.bitwiseOR,
        (f.when(f.col(name).isNull(), _long(0)).otherwise(_long(b)) for name, b in _BIT.items()),
    )
    rule = reduce(
        lambda case, kind: case.when(f.col("kind") == kind.name, _long(_rule(kind))),
        KINDS.values(),
        f.when(f.lit(False), _long(0)),
    )
    ruled = (*columns, rule.alias("_rule"), present.alias("_present"))
    judged = (*columns, f.col("_rule"), f.col("_present"), _is_wrong().alias("wrong"))
    return ruled, judged


def _long(value: int) -> Column:
    return f.lit(value).cast("long")


def _rule(kind: Kind) -> int:
    """Return bits: the columns that a kind must have and, above them, those that it may have."""
    has = sum(_BIT[name] for name in kind.has if name in _BIT)
    may = sum(_BIT[name] for name in {*kind.has, *kind.may_have} if name in _BIT)
    return has | may << _MAY


def _missing() -> Column:
    has = f.col("_rule").bitwiseAND(_long((1 << _MAY) - 1))
    return has.bitwiseAND(f.bitwise_not(f.col("_present")))


def _surplus() -> Column:
    may = f.shiftright(f.col("_rule"), _MAY)
    return f.col("_present").bitwiseAND(f.bitwise_not(may))


def _any_missing() -> Column:
    return reduce(Column.__or__, (f.col(name).isNull() for name in REQUIRED))


def _expected_id() -> Column:
    return f.concat_ws("-", "router", f.col("boot").cast("string"), f.col("seq").cast("string"))


def _is_wrong() -> Column:
    return (
        _any_missing()
        | (f.col("schema") != SCHEMA_VERSION)
        | (f.col("seq") < 1)
        | _has_no_day()
        | (f.col("event_id") != _expected_id())
        | f.col("_rule").isNull()
        | (_missing() != 0)
        | (_surplus() != 0)
    )


def _has_no_day() -> Column:
    return ~f.unix_micros("at").between(0, END_OF_DAYS - 1)


def problem() -> Column:
    """Describe what is wrong with a `checked` event; null if nothing is."""
    incomplete = f.concat_ws(
        "; ", *(f.when(f.col(name).isNull(), f"{name}: missing") for name in REQUIRED)
    )
    version = f.col("schema")
    texts = f.concat_ws(
        "; ", _of_bits(_missing(), ": missing in "), _of_bits(_surplus(), ": not a column of ")
    )
    return (
        f.when(_any_missing(), incomplete)
        .when(
            version != SCHEMA_VERSION,
            f.concat(f.lit("schema: version "), version, f.lit(" is not known here")),
        )
        .when(f.col("seq") < 1, f.lit("seq: less than 1"))
        .when(_has_no_day(), f.lit("at: not in the years 1970 to 9999"))
        .when(f.col("event_id") != _expected_id(), f.lit("event_id: is not ROUTER-BOOT-SEQ"))
        .when(f.col("_rule").isNull(), f.lit("kind: unknown"))
        .when((_missing() != 0) | (_surplus() != 0), texts)
    )


def _of_bits(bits: Column, text: str) -> Column:
    """Name the columns that the bits stand for."""
    said = (
        f.when(bits.bitwiseAND(_long(bit)) != 0, f.concat(f.lit(f"{name}{text}"), f.col("kind")))
        for name, bit in _BIT.items()
    )
    return f.array_compact(f.array(*said))


def quarantined(events: DataFrame) -> DataFrame:
    """Return the wrong ones of `checked` events: all their columns, the reason, and the segment.

    The segment is known from the file, because each column of an event may be wrong.
    """
    raw = f.to_json(f.struct(*EVENTS.names))
    url = f.regexp_replace(f.input_file_name(), "[+]", "%2B")  # which would become a space
    segment = f.regexp_extract(f.url_decode(url), "[^/]+/[^/]+$", 0)
    return events.where("wrong").select(
        "event_id", problem().alias("reason"), raw.alias("raw"), segment.alias("segment")
    )


def runs(events: DataFrame) -> DataFrame:
    """Return the sequence numbers of `checked` events and the facts about routers, by run."""
    keys, facts = _run_columns()
    return events.groupBy(*keys).agg(*facts)


@cache
def _run_columns() -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    right, kind, at = ~f.col("wrong"), f.col("kind"), f.unix_micros("at")
    seq = f.col("seq")
    recovered = kind == "router_recovered"
    bit = f.expr(f"shiftleft(1L, cast(seq & {BITS - 1} as int))")
    keys = (
        f.col("wrong"),
        f.when(right, f.col("router")).alias("router"),
        f.when(right, f.col("part")).alias("part"),
        f.when(right, f.col("boot")).alias("boot"),
        f.when(right, f.shiftright(seq, BITS.bit_length() - 1)).alias("block"),
    )
    facts = (
        f.count("*").alias("rows"),
        f.bit_or(bit).alias("mask"),
        f.min(at).alias("first_at"),
        f.max(at).alias("last_at"),
        f.max(f.when(recovered, at)).alias("recovered_at"),
        f.max(f.when(recovered, f.coalesce("through", f.lit(0)))).alias("recovered_through"),
        f.max(f.when(kind == "router_stopped", at)).alias("stopped_at"),
    )
    return keys, facts


@dataclass(frozen=True, slots=True)
class Summary:
    """The contents of a batch, by `ROUTER/BOOT`."""

    rows: int
    wrong: int
    numbers: dict[str, list[Pair]]
    repeated: dict[str, list[Pair]]
    """The `numbers` that were seen before."""
    routers: dict[str, dict[str, dict[str, int]]]
    parts: dict[str, str]
    times: dict[str, dict[int, Pair]]
    """The first and last time of each block of sequence numbers."""

    @property
    def new(self) -> int:
        every = sum(map(intervals.count, self.numbers.values()))
        return every - sum(map(intervals.count, self.repeated.values()))

    @property
    def has_duplicates(self) -> bool:
        return self.new < self.rows - self.wrong


def summarize(rows: Sequence[Row], seen: IntervalsByRun) -> Summary:
    """Summarize the rows of `runs`."""
    total = wrong = 0
    found: dict[str, list[Pair]] = {}
    routers: dict[str, dict[str, dict[str, int]]] = {}
    parts: dict[str, str] = {}
    times: dict[str, dict[int, Pair]] = {}
    for row in rows:
        total += row["rows"]
        if row["wrong"]:
            wrong += row["rows"]
            continue
        key = f"{row['router']}/{row['boot']}"
        found.setdefault(key, []).extend(_of_mask(row["mask"], row["block"] * BITS))
        parts[row["router"]] = row["part"]
        times.setdefault(key, {})[row["block"]] = row["first_at"], row["last_at"]
        of_boot = routers.setdefault(row["router"], {}).setdefault(str(row["boot"]), {})
        keep_greatest(of_boot, {name: row[name] for name in _RUN_FACTS})
    numbers = {key: intervals.merge(pairs) for key, pairs in found.items()}
    repeated = {
        key: common
        for key, pairs in numbers.items()
        if (common := intervals.overlap(pairs, seen.get(key, ())))
    }
    return Summary(total, wrong, numbers, repeated, routers, parts, times)


def _of_mask(mask: int, first: int) -> list[Pair]:
    if mask == -1:  # the usual case: all of them
        return [(first, first + BITS - 1)]
    return intervals.of_bitmap(mask.to_bytes(BITS // 8, "little", signed=True), first)


_RUN_FACTS = ("last_at", "recovered_at", "recovered_through", "stopped_at")


def clean(events: DataFrame, summary: Summary) -> DataFrame:
    """Return the valid events, each once, without those seen before.

    The usual batch, with nothing wrong and nothing twice, is returned unchanged.
    """
    good = checked(events).where("not wrong").select(*EVENTS.names) if summary.wrong else events
    if not summary.has_duplicates:
        return good
    good = good.dropDuplicates(["router", "boot", "seq"])
    before = [
        (*_run(key), low, high) for key, pairs in summary.repeated.items() for low, high in pairs
    ]
    if not before:
        return good
    seen = f.broadcast(local(good.sparkSession, before, _SEEN))
    again = (
        (f.col("router") == f.col("seen_router"))
        & (f.col("boot") == f.col("seen_boot"))
        & f.col("seq").between(f.col("low"), f.col("high"))
    )
    return good.join(seen, again, "left_anti")


_SEEN = t.StructType(
    [
        t.StructField("seen_router", t.StringType()),
        *(t.StructField(name, t.LongType()) for name in ("seen_boot", "low", "high")),
    ]
)


def _run(key: str) -> tuple[str, int]:
    router, _, boot = key.rpartition("/")
    return router, int(boot)
