"""The columns of each table, in Spark's types and in Arrow's."""

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from heliograph.pipeline.jobs.ledger import MARKS, SETTLEMENTS, STORED
from heliograph.pipeline.jobs.outcomes import LATENCIES
from heliograph.pipeline.jobs.rates import KEYS as RATE_KEYS
from heliograph.pipeline.jobs.tokens import TIMES
from heliograph.pipeline.spark.columns import EVENTS, QUARANTINE
from heliograph.pipeline.tables.storage import BY_DAY

_COUNTED = ("part", "router", "kind", "mode", "provider", "smp_host", "status", "reason", "command")

SCHEMAS = {
    "events": EVENTS,
    "quarantine": QUARANTINE,
    "marks": t.StructType(
        [
            t.StructField(name, t.StringType() if name == "notification" else t.LongType())
            for name in (*MARKS, *STORED)
        ]
    ),
    "settlements": t.StructType([t.StructField(name, t.LongType()) for name in SETTLEMENTS]),
    "counts": t.StructType(
        [
            t.StructField("hour", t.TimestampType()),
            *(t.StructField(name, t.StringType()) for name in _COUNTED),
            t.StructField("code", t.IntegerType()),
            t.StructField("own_server", t.BooleanType()),
            t.StructField("events", t.LongType()),
            t.StructField("total", t.LongType()),
        ]
    ),
    "actives": t.StructType(
        [
            t.StructField("day", t.DateType()),
            t.StructField("router", t.StringType()),
            t.StructField("smp_host", t.StringType()),
            t.StructField("what", t.StringType()),
            t.StructField("sketch", t.BinaryType()),
        ]
    ),
    "rates": t.StructType(
        [
            t.StructField("bucket", t.LongType()),
            *(t.StructField(name, t.StringType()) for name in RATE_KEYS[1:]),
            *(t.StructField(name, t.LongType()) for name in ("count", "total")),
        ]
    ),
    "tokens": t.StructType(
        [
            *(t.StructField(name, t.StringType()) for name in ("router", "token", "provider")),
            *(t.StructField(name, t.TimestampType()) for name in ("first_at", "last_at", *TIMES)),
            t.StructField("smp_hosts", t.ArrayType(t.StringType())),
        ]
    ),
    "coverage": t.StructType(
        [
            t.StructField("router", t.StringType()),
            t.StructField("part", t.StringType()),
            *(
                t.StructField(name, t.LongType())
                for name in ("boot", "first_seq", "last_seq", "events")
            ),
            t.StructField("from_at", t.TimestampType()),
            t.StructField("until_at", t.TimestampType()),
        ]
    ),
    "outcomes": t.StructType(
        [
            t.StructField("hour", t.TimestampType()),
            t.StructField("provider", t.StringType()),
            t.StructField("smp_host", t.StringType()),
            t.StructField("outcome", t.StringType()),
            t.StructField("recovered", t.BooleanType()),
            t.StructField("notifications", t.LongType()),
            t.StructField("within", t.ArrayType(t.LongType())),
            *(t.StructField(f"{name}_sketch", t.BinaryType()) for name in LATENCIES),
        ]
    ),
}


def arrow_schemas() -> dict[str, pa.Schema]:
    """Return the schemas of the tables, with their partition."""
    found = {name: to_arrow_schema(schema, timezone="UTC") for name, schema in SCHEMAS.items()}
    for name in BY_DAY:
        found[name] = found[name].append(pa.field("day", pa.date32()))
    return found
