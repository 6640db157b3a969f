"""Helpers of the tests of actions in the notification router."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heliograph.actions.contract import SECOND, Action, ActionKind
from heliograph.actions.table import append_actions
from heliograph.journal.hashing import Hasher
from heliograph.journal.identity import JournalIdentity
from heliograph.ntf.actions.options import ActionCap, ActionOptions
from heliograph.ntf.actions.runner import ActionRunner, ActionSettings
from heliograph.ntf.store.actions.applying import DailyCap
from tests.actions.support import ROUTER, SIGNER, an_action
from tests.journal.recorder import KEY
from tests.ntf.support import NtfWorld

IDENTITY = JournalIdentity(ROUTER, KEY)
ALL = frozenset(ActionKind)


def hashed(column: str, entity: bytes) -> str:
    hashes = Hasher(KEY).of(column)
    assert hashes is not None
    return hashes[entity]


def decided(kind: ActionKind, entity: bytes, **changes: Any) -> Action:
    """An action about an ID, valid now."""
    now = int(time.time()) * SECOND
    return an_action(
        kind,
        subject=hashed(kind.subject, entity),
        decided_at=now,
        valid_until=now + 3600 * SECOND,
        **changes,
    )


def a_runner(
    world: NtfWorld,
    tables: Path,
    automatic: frozenset[ActionKind] = ALL,
    cap: ActionCap | None = None,
    clock: Callable[[], float] = time.time,
) -> ActionRunner:
    caps = ActionOptions().caps() if cap is None else dict.fromkeys(ActionKind, cap)
    settings = ActionSettings(str(tables), SIGNER.public, automatic, caps, 3600.0)
    return ActionRunner(world.router, IDENTITY, world.directory, settings, clock)


def cap(number: int) -> ActionCap:
    return ActionCap(DailyCap(0.0, number), 1000.0)


def publish(tables: Path, *actions: Action) -> None:
    append_actions(tables, actions)
