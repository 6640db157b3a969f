"""What a commit of all tables consists of: their files, the offsets, and progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from heliograph.pipeline.tables.offsets import Offsets

DERIVED = ("marks", "settlements", "counts", "actives", "rates", "tokens")
"""Tables whose progress is a batch of events."""


def batch_of(path: str) -> int:
    """Return the number of the batch that wrote a file; 0 for files of other tools."""
    number = path.partition("-")[0]
    return int(number) if number.isdigit() else 0


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. `path` is relative to the table; `day` is its partition, if any."""

    path: str
    size: int
    rows: int
    day: str | None = None

    @property
    def batch(self) -> int:
        """Number of the batch that wrote it."""
        return batch_of(self.path)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files of all tables, the offsets, and the last batch that each derived table contains."""

    files: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=Offsets)
    progress: Mapping[str, int] = field(default_factory=dict)

    def of(self, table: str) -> tuple[DataFile, ...]:
        return self.files.get(table, ())

    @property
    def open_marks(self) -> list[DataFile]:
        """Return the files of marks of open notifications."""
        return [file for file in self.of("marks") if file.day is None]

    @property
    def closed_marks(self) -> list[DataFile]:
        return [file for file in self.of("marks") if file.day is not None]

    @property
    def unsummed_days(self) -> set[str | None]:
        """Return the days of closed marks that lack sums, because a closing was interrupted."""
        upto = self.progress.get("outcomes", 0)
        summed = {file.day for file in self.of("outcomes")}
        return {
            file.day for file in self.closed_marks if file.day not in summed or file.batch > upto
        }
