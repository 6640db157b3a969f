"""Opens the Spark session: the one place that knows its settings and where it runs."""

import os
import sys
from typing import TYPE_CHECKING

from heliograph.pipeline.java import cache_directory, find_java
from heliograph.runtime.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The methods that Spark generates for wide rows are longer than Java compiles by default.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:-DontCompileHugeMethods",
    "spark.executor.extraJavaOptions": "-XX:+UseParallelGC -XX:-DontCompileHugeMethods",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ui.explainMode": "simple",
    "spark.log.level": "ERROR",
}
_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def open_session(
    master: str = LOCAL, name: str = "heliograph", settings: dict[str, str] | None = None
) -> "SparkSession":
    """A session of this process; there is only ever one. Raises `StartError`."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as exc:
        raise StartError(
            f"the pipeline needs Spark, and {exc.name} is missing: pip install heliograph[pipeline]"
        ) from exc
    os.environ["JAVA_HOME"] = str(find_java(cache_directory()))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**settings_for(master), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as exc:
        raise StartError(f"Spark does not start on {master}: {exc}") from exc


def settings_for(master: str) -> dict[str, str]:
    """On this machine nothing listens on other addresses than loopback."""
    return {**_SETTINGS, **(_ON_THIS_MACHINE if master.startswith("local") else {})}
