"""Read Parquet files by their names."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

IS_PATTERN = "__globPaths__"
"""Spark's option whether names with brackets, braces and so on are patterns."""


def read_parquet(spark: "SparkSession", schema: "StructType", urls: Iterable[str]) -> "DataFrame":
    """Return the rows of these files. Raises an error of Spark if one does not exist."""
    return spark.read.schema(schema).option(IS_PATTERN, "false").parquet(*urls)
