"""Explanations of Spark's failures: the cause, in one line, and what to do about it."""

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from heliograph.pipeline.spark.java import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILURES = (PySparkException, Py4JJavaError)
"""The exceptions that a job raises; PySpark does not translate all of Java's."""

JAVA_LOST = (Py4JNetworkError, ConnectionRefusedError)
"""The exceptions of every call after the Java process has ended."""
JAVA_ENDED = (
    "the Java process of Spark ended, killed or out of memory, or the cluster ended the"
    " application: nothing of the batch counts; run it again, with more --memory if this repeats"
)

_ADVICE = (
    (("Permission denied", "AccessControl", "AccessDenied"), "let this user read and write there"),
    (("No space left",), "make room on the disk, and run it again: nothing of the batch counts"),
    (("OutOfMemoryError", "Java heap space"), "give it more: --memory 4g"),
    (("System memory", "Invalid maximum heap size"), "give it at least --memory 512m"),
    (
        ("No FileSystem for scheme", "ClassNotFoundException"),
        "Spark lacks a package for this URL: --conf spark.jars.packages=...",
    ),
    (("FileNotFound", "does not exist"), "name an existing place"),
    (("Connection refused", "UnknownHost", "timed out"), "see that the host can be reached"),
)


def has_ended(spark: "SparkSession") -> bool:
    """Return True if no job can run any more: Java or its connection to the cluster is gone."""
    java: JavaObject = spark
    try:
        return bool(java._jsc.sc().isStopped())
    except (*FAILURES, *JAVA_LOST, Py4JError):
        return True


def cause(exc: BaseException) -> str:
    """Return the innermost cause that Java names, else the first line of the message."""
    found: JavaObject = getattr(exc, "java_exception", None) or getattr(exc, "_origin", None)
    text = ""
    for _ in range(20):  # causes may form a cycle
        if found is None:
            break
        text = str(found.toString())
        found = found.getCause()
    lines = (text or str(exc)).splitlines()
    return next((line.strip() for line in lines if line.strip()), type(exc).__name__)


def advice(text: str) -> str | None:
    """Return what to do about a cause, if it is a known one."""
    return next((help for words, help in _ADVICE if any(word in text for word in words)), None)
