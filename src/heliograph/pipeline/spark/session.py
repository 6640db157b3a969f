"""The Spark session: its settings, and where it runs."""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.pipeline.spark.java import cache_directory, find_java
from heliograph.runtime.errors import StartError, file_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
MAX_LOG = 1 << 20
"""Size in bytes from which the log of earlier runs is truncated."""
_JAVA = (
    # The methods that Spark generates for wide rows are longer than Java compiles by default.
    "-XX:+UseParallelGC -XX:-DontCompileHugeMethods"
    # Optimize fully what runs for each row, at five times the default counts: Spark's planner
    # takes most of the compiler's time otherwise.
    " -XX:Tier4InvocationThreshold=25000 -XX:Tier4MinInvocationThreshold=3000"
    " -XX:Tier4CompileThreshold=75000"
)
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    # A batch gets cores although an account or a merge has all of them.
    "spark.scheduler.mode": "FAIR",
    # The small first map helps with few keys; with the ledger's many, each is looked up twice.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    # Otherwise each expression sends Java its line of Python: five messages instead of one.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
    # Journals have checksums: without a look at them, some damage would be other events.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ui.explainMode": "simple",
    "spark.log.level": "ERROR",
}
_POOLS = """<?xml version="1.0"?>
<allocations><pool name="default"><schedulingMode>FAIR</schedulingMode></pool></allocations>
"""
"""Jobs share cores although none is given to a pool, which only the JVM's own API can do."""
_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def open_session(
    master: str = LOCAL,
    name: str = "heliograph",
    settings: dict[str, str] | None = None,
    log: Path | None = None,
) -> "SparkSession":
    """Open the only session of this process. Raises `StartError`.

    Output of Java and Spark goes to the file `log`, else to standard error.
    """
    from pyspark.sql import SparkSession

    from heliograph.pipeline.spark.failures import FAILURES, JAVA_ENDED, JAVA_LOST, advice, cause

    logging.getLogger().addFilter(_is_not_of_py4j)
    os.environ["JAVA_HOME"] = str(find_java(cache_directory()))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName(name)
    wanted = {**settings_for(master), **_pools(), **(settings or {})}
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        if log is not None:
            _start_java({"spark.master": master, **wanted}, log)
        return builder.getOrCreate()
    except (*FAILURES, *JAVA_LOST, RuntimeError, OSError) as exc:
        more = "" if log is None else f"\n{log} has what Spark said"
        if isinstance(exc, JAVA_LOST):
            raise StartError(f"{JAVA_ENDED}{more}") from exc
        text = cause(exc)
        help = advice(text) or "see that --master and --conf are right"
        raise StartError(f"Spark does not start on {master}: {text}: {help}{more}") from exc


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for the traceback that py4j logs of each call after Java has ended."""
    return record.msg != "Exception while sending command."


def _pools() -> dict[str, str]:
    """Return the setting that names the file of pools; without a place for it, jobs queue."""
    path = cache_directory() / "pools.xml"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            temporary.write_text(_POOLS)
            temporary.replace(path)
    except OSError:
        return {}
    return {"spark.scheduler.allocation.file": path.as_uri()}


def _start_java(settings: dict[str, str], log: Path) -> None:
    """Start a JVM as PySpark does, with standard error to `log`. Keep a running JVM."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        opened = log.open("ab")
    except OSError as exc:
        raise StartError(file_error(exc, log)) from exc
    with opened as file:
        if file.tell() > MAX_LOG:
            file.truncate(0)
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"stderr": file})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


def settings_for(master: str) -> dict[str, str]:
    """Return the settings for a master. On this machine, listen on loopback only."""
    return {**_SETTINGS, **(_ON_THIS_MACHINE if master.startswith("local") else {})}
