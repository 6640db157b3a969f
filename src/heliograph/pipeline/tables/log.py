"""The logs of Delta tables: how long they are kept, their checkpoints, and Delta's errors."""

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable

logger = logging.getLogger(__name__)

RETENTION_HOURS = 24
"""Hours that a removed file stays for readers that began before."""
CHECKPOINT_INTERVAL = 50
"""Number of commits between two checkpoints."""
CONFIGURATION = {
    "delta.checkpointInterval": f"{CHECKPOINT_INTERVAL}",
    "delta.deletedFileRetentionDuration": f"interval {RETENTION_HOURS} hours",
    "delta.logRetentionDuration": "interval 7 days",
}


def maintain(name: str, table: "DeltaTable") -> None:
    """Write a checkpoint now and then, and remove old commits before it.

    Delta would do so during a commit, which would then fail although it is made.
    """
    from deltalake.exceptions import DeltaError

    if (table.version() + 1) % CHECKPOINT_INTERVAL:
        return
    try:
        table.create_checkpoint()
        table.cleanup_metadata()
    except (OSError, DeltaError) as exc:
        logger.warning("the log of the table %s has no new checkpoint: %s", name, reason(exc))


def reason(exc: Exception) -> str:
    """Return the text of an error in one line, without Delta's colours and tree."""
    lines = (re.sub(r"\x1b\[\d*m|↳", "", line).strip() for line in str(exc).splitlines())
    return ": ".join(line for line in lines if line) or type(exc).__name__
