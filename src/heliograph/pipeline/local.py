"""Small frames of this process's own rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local(spark: "SparkSession", rows: Sequence[Sequence[Any]], schema: t.StructType) -> DataFrame:
    """By way of Arrow, since Spark would start Python processes to read the rows else."""
    columns = zip(*rows, strict=True) if rows else [() for _ in schema.names]
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, arrow, strict=True)
    ]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)
