"""How many tasks a job is divided into, by the size of what it reads."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINGLE_TASK_BYTES = 4 << 20
"""Size up to which a batch is one task: more tasks would cost more than they save."""
_PER_PARTITION = 8 << 20


def set_number(spark: "SparkSession", size: int) -> None:
    """Set the number of partitions so that each fits into memory."""
    number = 1 if size < SINGLE_TASK_BYTES else max(2, min(size // _PER_PARTITION, 2000))
    spark.conf.set("spark.sql.shuffle.partitions", str(number))
