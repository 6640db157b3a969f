"""A driver on a cluster, as a process: `python -m tests.pipeline.on_cluster MASTER DIRECTORY`.

It reports each step as a line of JSON. Between two batches it waits for a line, so that a worker
can be killed.
"""

import json
import sys
from pathlib import Path

from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.schedule import once
from heliograph.pipeline.spark.session import open_session
from heliograph.pipeline.tables.offsets import read_offsets
from heliograph.pipeline.tables.tables import RowsMissing, open_tables
from tests.pipeline.support import SPARK_SETTINGS

OTHER_DISK = "/proc/self/cwd/tables"
"""Another folder for each process, as if each had a disk of its own there."""
OTHER_JOURNAL = "/proc/self/cwd/journal"


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(master: str, work: Path) -> None:
    options = SPARK_SETTINGS["spark.driver.extraJavaOptions"]
    settings = {
        **SPARK_SETTINGS,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": options,
    }
    spark = open_session(master, "heliograph tests", settings)
    journals = RunSettings((str(work / "journal"),), batch_files=3)
    with open_tables(OTHER_DISK) as tables:
        try:
            Pipeline(spark, tables, journals).ingester.ingest_batch()
            say(refused=None)
        except RowsMissing as exc:
            say(refused=str(exc), batch=read_offsets(OTHER_DISK).batch)
    with open_tables(work / "tables") as tables:
        try:
            once(Pipeline(spark, tables, RunSettings((OTHER_JOURNAL,))))
            say(refused=None)
        except RowsMissing as exc:
            say(refused=str(exc), batch=read_offsets(work / "tables").batch)
        made = Pipeline(spark, tables, journals)
        made.ingester.ingest_batch()
        say(ready=True)
        sys.stdin.readline()
        while made.ingester.ingest_batch() is not None:
            pass
        made.update_ledger()
        say(outcomes=made.account().outcomes, events=made.offsets.counts["events"])
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
