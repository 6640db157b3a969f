"""Make the runner of actions from a configuration."""

from pathlib import Path

from heliograph.actions.table import require_packages
from heliograph.journal.identity import journal_identity
from heliograph.ntf.actions.options import ActionOptions
from heliograph.ntf.actions.runner import ActionRunner, ActionSettings
from heliograph.ntf.router import NtfRouter
from heliograph.runtime.config.sections import JournalOptions
from heliograph.runtime.errors import StartError

__all__ = ["action_settings", "make_runner"]


def action_settings(
    options: ActionOptions, journal: JournalOptions, directory: Path
) -> ActionSettings:
    """Return the settings of `[actions]`. Raises `StartError` if there is a table, but no journal.

    Without a journal there are no hashes that an action could name.
    """
    place = options.place_in(directory)
    if place is not None and not journal.path:
        raise StartError("[actions] table: needs [journal] path: actions name hashes of a journal")
    return ActionSettings(
        place, options.public_key, options.automatic_kinds, options.caps(), options.poll_seconds
    )


def make_runner(
    options: ActionOptions, journal: JournalOptions, directory: Path, router: NtfRouter
) -> ActionRunner | None:
    """Return the runner of actions; None if there is no table. Raises `StartError`."""
    settings = action_settings(options, journal, directory)
    if settings.place is None:
        return None
    require_packages()
    identity = journal_identity(directory, journal.key_epoch)
    return ActionRunner(router, identity, directory, settings)
