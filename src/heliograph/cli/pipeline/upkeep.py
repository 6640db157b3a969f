"""`heliograph pipeline backfill`, `compact`, `expire`, `requeue` and `retire`."""

import argparse
import time
from datetime import timedelta

from heliograph.cli.pipeline.ingesting import ingest_all
from heliograph.cli.pipeline.opening import acknowledging, check_tables, open_pipeline
from heliograph.cli.pipeline.options import check_days
from heliograph.cli.progress import Bar


def run_backfill(options: argparse.Namespace) -> int:
    check_days(options)
    check_tables(options)
    with open_pipeline(options) as pipeline:
        from heliograph.pipeline.upkeep import backfill

        days = (options.to_day - options.from_day).days + 1
        bar = Bar("making statistics", "days")
        for number in range(days):
            backfill(pipeline, options.from_day + timedelta(days=number))
            bar.show(number + 1, days)
        bar.end()
    return 0


def run_compact(options: argparse.Namespace) -> int:
    check_tables(options)
    with open_pipeline(options) as pipeline:
        from heliograph.pipeline.upkeep import compact

        pipeline.update_ledger()
        pipeline.update_stats()
        replaced = compact(pipeline, everything=True)
        removed = pipeline.tables.vacuum()
        print(f"{replaced} files merged, {removed} removed")
    return 0


def run_expire(options: argparse.Namespace) -> int:
    check_tables(options)
    with open_pipeline(options) as pipeline:
        from heliograph.pipeline.upkeep import expire

        replaced = expire(pipeline, time.time(), options.keep_events, options.keep_ledger)
        removed = pipeline.tables.vacuum()
        print(f"{replaced} files count no more, {removed} removed")
    return 0


def run_requeue(options: argparse.Namespace) -> int:
    check_tables(options)
    with open_pipeline(options) as pipeline, acknowledging(options, pipeline):
        from heliograph.pipeline.requeue import requeue

        found = requeue(pipeline)
        print(f"{found.records} records of quarantine are read again")
        if found.kept:
            print(
                f"{found.kept} stay: their segments are in no journal that was named, or their"
                " runs have expired"
            )
        return ingest_all(pipeline)


def run_retire(options: argparse.Namespace) -> int:
    check_tables(options)
    with open_pipeline(options) as pipeline:
        from heliograph.pipeline.upkeep import retire

        retire(pipeline, options.router)
        print(f"nothing more is expected of {options.router}")
    return 0
