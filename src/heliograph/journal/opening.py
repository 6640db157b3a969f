"""Open the journal that a configuration defines."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.journal.heads import HEARTBEAT, SHARED_HEARTBEAT
from heliograph.journal.identity import journal_identity
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.journal.schema import Part
from heliograph.runtime.config.sections import REFUSE_NEW, JournalOptions

if TYPE_CHECKING:
    from heliograph.journal.storage.writer import JournalWriter

__all__ = ["enter_journal", "open_journal"]


def open_journal(
    section: JournalOptions, directory: Path, part: Part, *, is_shared: bool = False
) -> "JournalWriter | None":
    """Return the journal, None if it is disabled. `directory` is the router's and has the key.

    It `is_shared` if other processes of the router write there, too.
    """
    path = section.path_in(directory)
    if path is None:
        return None
    # Imported here because importing Arrow is slow.
    from heliograph.journal.storage.settings import MEBIBYTE, JournalSettings
    from heliograph.journal.storage.writer import JournalWriter

    settings = JournalSettings(
        seal_after=section.seal_seconds,
        max_bytes=section.max_megabytes * MEBIBYTE,
        refuse_new=section.when_full == REFUSE_NEW,
        keep_acknowledged=section.keep_days * 86_400.0,
        heartbeat=SHARED_HEARTBEAT if is_shared else HEARTBEAT,
        is_shared=is_shared,
    )
    return JournalWriter(path, journal_identity(directory, section.key_epoch), part.value, settings)


def enter_journal(
    stack: AsyncExitStack,
    section: JournalOptions,
    directory: Path,
    part: Part,
    *,
    is_shared: bool = False,
) -> Journal:
    """Return the journal, which `stack` closes; one that discards events if it is disabled."""
    journal = open_journal(section, directory, part, is_shared=is_shared)
    if journal is None:
        return NO_JOURNAL
    stack.callback(journal.close)
    return journal
