"""Wakes of many tokens: who is to be woken, in a table beside that of the actions.

One signed action starts a wake at one router. It binds the list of tokens, which are hashes of the
router's journal in the order in which they are woken, by a digest; the list itself needs no
signature. See `heliograph.actions.contract`.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.actions.table import open_table, query, quoted, table_url, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CONTROLS",
    "MAX_RATE",
    "MAX_TOKENS",
    "MEMBERS",
    "digest_of",
    "expire_members",
    "new_wake_id",
    "read_members",
    "write_members",
]

MEMBERS = "wake_members"
"""The table: `wake`, `router`, `position` and `token`."""
MAX_TOKENS = 5_000_000
"""Tokens of one wake: the list must fit into memory."""
MAX_RATE = 20_000
"""Tokens in a second that a router may be asked to wake."""
CONTROLS = ("pause", "resume", "abort")
_HASH = re.compile(r"[0-9a-f]{32}")


def new_wake_id() -> str:
    return secrets.token_hex(16)


def digest_of(tokens: Iterable[str]) -> str:
    """Return what binds a list of tokens, with its order."""
    state = hashlib.blake2b(digest_size=16, person=b"helio-wake")
    for token in tokens:
        state.update(bytes.fromhex(token))
    return state.hexdigest()


def write_members(place: str | Path, members: "pa.Table") -> None:
    """Append the tokens of a wake: the columns of `MEMBERS`."""
    from deltalake import write_deltalake

    write_deltalake(
        table_url(place, MEMBERS), members, mode="append", partition_by=["wake", "router"]
    )


def read_members(place: str | Path, wake: str, router: str) -> Sequence[str]:
    """Return the tokens of a wake at a router, in their order. Raises `StartError`.

    None if what is there is no list of tokens.
    """
    table = open_table(place, MEMBERS)
    if table is None:
        return []
    try:
        found = query(
            table,
            "token",
            f"WHERE wake = {quoted(wake)} AND router = {quoted(router)}"
            f" ORDER BY position LIMIT {MAX_TOKENS}",
        )
    except Exception as exc:
        raise unreadable(place, MEMBERS, exc) from exc
    tokens = found.column("token").to_pylist()
    return [item for item in tokens if isinstance(item, str) and _HASH.fullmatch(item)]


def expire_members(place: str | Path, kept: Iterable[str]) -> None:
    """Remove the tokens of all wakes but those named."""
    table = open_table(place, MEMBERS)
    if table is not None:
        names = ", ".join(f"'{item}'" for item in sorted({*kept}) if _HASH.fullmatch(item))
        table.delete(f"wake NOT IN ({names})" if names else None)
