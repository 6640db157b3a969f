"""List the tokens of a wake in the store, before the action that begins it is applied."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from heliograph.actions.contract import Action, Refusal
from heliograph.actions.wakes import digest_of, read_members
from heliograph.journal.hashing import Hasher
from heliograph.ntf.actions.resolving import resolve_hashes
from heliograph.ntf.store import wakes
from heliograph.ntf.store.store import NtfStore
from heliograph.runtime.errors import StartError

__all__ = ["list_members"]

logger = logging.getLogger(__name__)
PAGE = 5_000
"""Tokens that are listed in one transaction."""


async def list_members(
    action: Action, evidence: Mapping[str, object], place: str, store: NtfStore, hasher: Hasher
) -> Refusal | None:
    """List the tokens of an action in the store, those that it has; return why it is refused.

    A list that is not the one that was signed is `FORGED`. After a kill it is listed again.
    """
    wake_id = bytes.fromhex(action.subject)
    if await store.read(lambda tx: wakes.find(tx, wake_id)) is not None:
        return Refusal.DISAGREED
    try:
        members = await asyncio.to_thread(read_members, place, action.subject, action.router)
    except StartError as exc:
        logger.error("%s", exc)
        return Refusal.FORGED
    if evidence.get("digest") != await asyncio.to_thread(digest_of, members) or not members:
        return Refusal.FORGED
    found = await resolve_hashes("token", members, hasher, store.read)
    token_ids = [found[item] for item in members if item in found]
    if not token_ids:
        return Refusal.UNKNOWN_SUBJECT
    for start in range(0, len(token_ids), PAGE):
        page = token_ids[start : start + PAGE]
        await store.database.write(
            partial(wakes.add_members, wake_id=wake_id, first=start, token_ids=page)
        )
    return None
