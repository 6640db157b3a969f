"""Small DataFrames from rows of this process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, types as t
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def local(
    spark: "SparkSession", rows: Sequence[Sequence[object]], schema: t.StructType
) -> DataFrame:
    """Make a DataFrame through Arrow: otherwise Spark starts Python processes to read the rows."""
    columns = zip(*rows, strict=True) if rows else [() for _ in schema.names]
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, arrow, strict=True)
    ]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)
