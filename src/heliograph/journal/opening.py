"""Opens the journal that a configuration asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.journal.identity import journal_identity
from heliograph.journal.schema import Part
from heliograph.runtime.sections import REFUSE_NEW
from heliograph.runtime.sections import Journal as Section

if TYPE_CHECKING:
    from heliograph.journal.writer import JournalWriter

__all__ = ["open_journal"]


def open_journal(section: Section, directory: Path, part: Part) -> "JournalWriter | None":
    """None if there is to be none. `directory` is the router's, which has the journal's key."""
    path = section.path_in(directory)
    if path is None:
        return None
    # Only here: Arrow takes a while to be imported.
    from heliograph.journal.writer import MEBIBYTE, JournalSettings, JournalWriter

    settings = JournalSettings(
        seal_after=section.seal_seconds,
        max_bytes=section.max_megabytes * MEBIBYTE,
        refuse_new=section.when_full == REFUSE_NEW,
    )
    return JournalWriter(path, journal_identity(directory), part.value, settings)
