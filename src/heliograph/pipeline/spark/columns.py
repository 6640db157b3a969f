"""The journal's schema in Spark's types."""

from pyspark.sql import types as t

from heliograph.journal.schema import COLUMNS, ColumnType

_TYPES: dict[ColumnType, t.DataType] = {
    ColumnType.INT16: t.ShortType(),
    ColumnType.INT32: t.IntegerType(),
    ColumnType.INT64: t.LongType(),
    ColumnType.BOOL: t.BooleanType(),
    ColumnType.TEXT: t.StringType(),
    ColumnType.TEXTS: t.ArrayType(t.StringType()),
    ColumnType.TIME: t.TimestampType(),
}

EVENTS = t.StructType(
    [t.StructField(column.name, _TYPES[column.type]) for column in COLUMNS.values()]
)
"""Every column is nullable, because input may be wrong: `ingest` checks it."""

QUARANTINE = t.StructType(
    [
        t.StructField("event_id", t.StringType()),
        t.StructField("reason", t.StringType()),
        t.StructField("raw", t.StringType()),
        t.StructField("segment", t.StringType()),
    ]
)
