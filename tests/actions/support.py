"""Helpers of the tests of actions: a pipeline's key, and actions that it signed."""

import hashlib
from dataclasses import replace
from typing import Any

from heliograph.actions.contract import SECOND, Action, ActionKind, new_action
from heliograph.crypto.keys import KeyPair, public_key
from heliograph.documents import JsonObject
from heliograph.wire.keys import PKCS8_PREFIX, Algorithm

ROUTER = "00" * 8
NOW = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND


def key_of(name: str) -> KeyPair:
    private = PKCS8_PREFIX[Algorithm.ED25519] + hashlib.sha256(name.encode()).digest()
    return KeyPair(public_key(private), private)


SIGNER = key_of("pipeline")


def an_action(kind: ActionKind = ActionKind.RESUBSCRIBE, **changes: Any) -> Action:
    """One that is valid at `NOW`; changes are made before it is signed."""
    values: JsonObject = {
        "router": ROUTER,
        "kind": kind,
        "subject": "11" * 16,
        "evidence": {"window_end": 1, "reason": "unsubscribed"},
        "rule": "reconcile/1",
        "decided_at": NOW,
        "valid_until": NOW + HOUR,
        "signer": SIGNER,
    }
    return new_action(**{**values, **changes})


def altered(action: Action, **changes: Any) -> Action:
    """Return an action that was changed after it was signed."""
    return replace(action, **changes)
