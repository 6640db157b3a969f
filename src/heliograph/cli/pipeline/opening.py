"""Open the pipeline for a command: its session of Spark, its tables and its settings."""

import argparse
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.cli.pipeline.options import PART
from heliograph.runtime.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from heliograph.pipeline.jobs.outcomes import OutcomeSettings
    from heliograph.pipeline.objectives.objective import Objective
    from heliograph.pipeline.runner import Pipeline
    from heliograph.pipeline.tables.tables import Tables

__all__ = [
    "acknowledging",
    "check_exists",
    "check_tables",
    "local_directory",
    "log_directory",
    "open_pipeline",
    "open_reader",
    "outcome_settings",
]


@contextmanager
def open_pipeline(options: argparse.Namespace) -> Iterator["Pipeline"]:
    """Open the pipeline to write; take the lock first, since Spark takes seconds to start."""
    from heliograph.pipeline.tables.tables import open_tables

    with open_tables(options.dir) as tables, _session(options) as spark:
        yield _make(spark, tables, options)


def check_exists(options: argparse.Namespace) -> None:
    """Raise `StartError` if `--dir` is a directory that does not exist."""
    if isinstance(options.dir, Path) and not options.dir.exists():
        raise StartError(
            f"there is no directory {options.dir}: run `heliograph pipeline once`, or name another"
            " with --dir"
        )


def check_tables(options: argparse.Namespace) -> None:
    """Raise `StartError` unless something was ingested into the tables."""
    from heliograph.pipeline.tables.offsets import read_offsets

    if not read_offsets(options.dir).batch:
        raise StartError(
            f"there are no tables in {options.dir} yet: run `heliograph pipeline once`"
        )


@contextmanager
def open_reader(options: argparse.Namespace) -> Iterator["Pipeline"]:
    """Open the pipeline to read, also while another process writes."""
    from heliograph.pipeline.tables.tables import Tables

    tables = Tables(options.dir)
    tables.check_others()
    with _session(options) as spark:
        yield _make(spark, tables.pinned(), options)


@contextmanager
def acknowledging(
    options: argparse.Namespace, pipeline: "Pipeline", *, streams: bool = False
) -> Iterator[None]:
    """Report to the journals what is committed meanwhile, unless --no-acknowledge was given."""
    from heliograph.pipeline.acknowledging import Acknowledger, damaged_segments

    if options.no_acknowledge:
        yield
        return
    damaged = partial(damaged_segments, options.dir)
    acknowledger = Acknowledger(options.journal, damaged, streams=streams)
    with acknowledger.reporting(lambda: pipeline.offsets):
        yield


@contextmanager
def _session(options: argparse.Namespace) -> Iterator["SparkSession"]:
    from heliograph.pipeline.source import no_journal
    from heliograph.pipeline.spark.session import open_session

    for journal in getattr(options, "journal", ()):
        if "://" not in journal and not Path(journal).is_dir():
            raise no_journal(journal)
    settings = {"spark.driver.memory": options.memory, **dict(options.conf)}
    log = None if options.verbose else log_directory(options) / "spark.log"
    with _deferred_interrupt():
        spark = open_session(options.master, settings=settings, log=log)
    from heliograph.pipeline.spark.failures import (
        FAILURES,
        JAVA_ENDED,
        JAVA_LOST,
        advice,
        cause,
        has_ended,
    )

    more = "" if log is None else f"\n{log} has what Spark said"
    try:
        yield spark
    except Exception as exc:
        if has_ended(spark):
            raise StartError(f"{JAVA_ENDED}{more}") from exc
        if not isinstance(exc, FAILURES):
            raise
        text = cause(exc)
        help = advice(text) or "nothing of the batch counts; run it again when the cause is gone"
        raise StartError(f"Spark failed: {text}: {help}{more}") from exc
    finally:
        with suppress(*JAVA_LOST):
            spark.stop()


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Defer SIGINT until Spark has started: earlier it would leave a JVM behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        from pyspark.sql import SparkSession

        running = SparkSession.getActiveSession()
        if running is not None:
            running.stop()
        raise KeyboardInterrupt


def local_directory(options: argparse.Namespace) -> Path:
    """Return where logs and reports go: beside the tables, unless they are at a URL."""
    return options.dir if isinstance(options.dir, Path) else _cache()


def log_directory(options: argparse.Namespace) -> Path:
    """Return where the log of Spark goes: tables may be read by a user who cannot write there."""
    directory = local_directory(options)
    is_read_only = directory.is_dir() and not os.access(directory, os.W_OK | os.X_OK)
    return _cache() if is_read_only else directory


def _cache() -> Path:
    from heliograph.pipeline.spark.java import cache_directory

    return cache_directory() / PART


def _make(spark: "SparkSession", tables: "Tables", options: argparse.Namespace) -> "Pipeline":
    from heliograph.pipeline.runner import Pipeline, RunSettings

    settings = RunSettings(
        tuple(getattr(options, "journal", ())),
        outcomes=outcome_settings(options),
        objectives=objective_settings(options),
    )
    return Pipeline(spark, tables, settings)


def objective_settings(options: argparse.Namespace) -> "tuple[Objective, ...]":
    """Return the objectives that were given, else those of the last account."""
    from heliograph.pipeline.objectives.objective import DEFAULTS, parse_objectives
    from heliograph.pipeline.tables.offsets import read_account

    given = getattr(options, "objective", None)
    if given:
        return tuple(dict.fromkeys(given))
    asked = read_account(options.dir).get("asked_objectives")
    return DEFAULTS if asked is None else parse_objectives(asked)


def outcome_settings(options: argparse.Namespace) -> "OutcomeSettings":
    """Return the settings that were given, completed by those of the last account."""
    from heliograph.pipeline.jobs.outcomes import OutcomeSettings
    from heliograph.pipeline.tables.offsets import read_account

    known = OutcomeSettings(**read_account(options.dir).get("settings", {}))
    given = {
        "push_ttl": _seconds(getattr(options, "push_ttl", None)),
        "retire_after": _seconds(getattr(options, "retire_after", None)),
        "grace": getattr(options, "grace", None),
    }
    return replace(known, **{name: value for name, value in given.items() if value is not None})


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * 86_400
