"""A process that writes a journal until it is killed, and prints what it knows to be sealed.

    python -m tests.journal.process DIRECTORY SEED [BYTES]

BYTES limits the size of each file that it may write, as a full disk would.
"""

import random
import resource
import signal
import sys
import time
from pathlib import Path

from heliograph.journal.events import ClientConnected
from heliograph.journal.storage.settings import JournalSettings
from heliograph.journal.storage.writer import JournalWriter
from tests.journal.support import IDENTITY


def newest_boot(directory: Path) -> int:
    """Return the number of the run that sealed the newest segment."""
    return max(int(path.name.split("-")[0]) for path in directory.glob("[0-9]*.parquet"))


def main(directory: Path, seed: int, limit: int | None) -> None:
    chance = random.Random(seed)
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    journal = JournalWriter(directory, IDENTITY, "ntf", JournalSettings(0.002, 0.01))
    boot = synced = number = 0
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for _ in range(chance.randrange(1, 40)):
            number += 1
            journal.record(ClientConnected(count=number))
        time.sleep(chance.random() * 0.004)
        if journal.written > synced:
            synced = journal.written
            boot = boot or newest_boot(journal.directory)
            sys.stdout.write(f"{boot} {synced}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
