"""`heliograph pipeline run --every SECONDS`: without Spark while there is nothing to read."""

import argparse
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

from heliograph.cli.pipeline.decide import once_arguments
from heliograph.cli.pipeline.ingesting import EXIT_CODES
from heliograph.runtime.errors import StartError

logger = logging.getLogger(__name__)

POLL_SECONDS = 5.0
UPKEEP_SECONDS = 86_400.0
STOP_SECONDS = 15.0
LARGE_MEMORY = "2g"
_VERDICTS = {code: verdict for verdict, code in EXIT_CODES.items()}
SMALL_BATCH_CONF = {
    # To compile what runs once costs more than it saves; the heap grows only as far as needed.
    "spark.driver.extraJavaOptions": (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms64m -Xmn24m -Xss512k"
        " -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20"
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of Spark for small batches."""


def run_light(options: argparse.Namespace) -> int:
    """Start `once` in a process of its own whenever something waits, until SIGTERM or SIGINT."""
    from heliograph.pipeline.metrics import PipelineCollector, served
    from heliograph.pipeline.tables.tables import check_writable
    from heliograph.pipeline.watching import LARGE_BYTES, Watcher

    check_writable(options.dir)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    watcher = Watcher(options.dir, options.journal, options.every)
    collector = PipelineCollector(options.dir, options.journal)
    upkeep_at = float("-inf")
    watcher.due(time.monotonic())  # report a wrong place now
    with served(collector, options.metrics) if options.metrics else nullcontext():
        print(f"ready {options.dir}", flush=True)
        while not stop.is_set():
            now = time.monotonic()
            try:
                size = watcher.due(now)
            except (StartError, OSError) as exc:  # the journal may be readable again later
                logger.error("%s", exc)
                size = None
            if size is not None:
                words = command(options, small=size < LARGE_BYTES, upkeep=now >= upkeep_at)
                code = _run_batch(words, stop)
                if code in _VERDICTS:
                    upkeep_at = now + UPKEEP_SECONDS if now >= upkeep_at else upkeep_at
                    collector.batch_seconds = time.monotonic() - now
                    logger.info("a batch took %.1f s: %s", collector.batch_seconds, _VERDICTS[code])
                elif not stop.is_set():
                    logger.error(
                        "a batch failed, see above; the next one reads the same segments again"
                    )
                watcher.ran(time.monotonic())
            stop.wait(POLL_SECONDS)
    return 0


def command(options: argparse.Namespace, *, small: bool, upkeep: bool) -> list[str]:
    """Return the command of one batch; one that is not small has at least `LARGE_MEMORY`."""
    words = [sys.executable, "-m", "heliograph", "pipeline", "once", "--dir", str(options.dir)]
    memory = options.memory if small or not options.memory.endswith("m") else LARGE_MEMORY
    words += ["--master", options.master, "--memory", memory]
    for journal in options.journal:
        words += ["--journal", journal]
    conf = {**(SMALL_BATCH_CONF if small else {}), **dict(options.conf)}
    for key, value in conf.items():
        words += ["--conf", f"{key}={value}"]
    for name in ("push_ttl", "grace", "retire_after"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for objective in options.objective or ():
        words += ["--objective", objective.text]
    words += once_arguments(options)
    words += ["--verbose"] if options.verbose else []
    words += ["--no-acknowledge"] if options.no_acknowledge else []
    if upkeep:
        words += ["--upkeep", "--keep-events", str(options.keep_events)]
        words += ["--keep-ledger", str(options.keep_ledger)]
    return words


def _run_batch(words: list[str], stop: threading.Event) -> int:
    # Otherwise the C library keeps a pool of free memory for each of Java's many threads.
    environ = {"MALLOC_ARENA_MAX": "1", **os.environ}
    process = subprocess.Popen(  # noqa: S603
        words, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environ
    )
    while process.poll() is None and not stop.wait(0.2):
        pass
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
