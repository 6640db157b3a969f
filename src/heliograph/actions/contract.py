"""Actions: what the pipeline asks a router to do, in rows that say nothing to anybody else.

The subject of an action is a keyed hash of the router's journal, which only that router can
resolve. An action is identified by its content and signed by the pipeline, so that one that was
altered or made by somebody else is recognised. This module does no I/O and reads no clock.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, sign, verify
from heliograph.documents import JsonMapping

__all__ = [
    "EVERYTHING",
    "FLOOD_SECONDS",
    "KINDS",
    "MAX_CLOCK_SKEW",
    "MAX_VALIDITY",
    "NO_SUBJECT",
    "Action",
    "ActionKind",
    "MalformedAction",
    "Refusal",
    "check",
    "decode_action",
    "new_action",
]

SECOND = 1_000_000
MAX_VALIDITY = 7 * 86_400 * SECOND
"""Microseconds that an action may be valid: routers remember what they applied for longer."""
MAX_CLOCK_SKEW = 300 * SECOND
"""Microseconds that the pipeline's clock may be ahead of the router's."""
MAX_EVIDENCE = 4096
"""Characters of evidence."""
FLOOD_SECONDS = 40
"""Seconds in which `observed` of a flood was counted, and each value that `baseline` is of."""

_HEX = re.compile(r"[0-9a-f]{32}")
_ROUTER = re.compile(r"[0-9a-f]{16}")
_RULE = re.compile(r"[a-z_]{1,40}/[0-9]{1,6}")


NO_SUBJECT = "none"
"""The subject's column of kinds that concern a router as a whole."""
EVERYTHING = "0" * 32
"""The subject of an action that concerns all there is."""


class ActionKind(Enum):
    """What a router may be asked to do."""

    RESUBSCRIBE = "resubscribe"
    """Subscribe to the queue again. It repairs a lost subscription, and changes nothing else."""
    DELETE_ORPHAN = "delete_orphan"
    """Delete a subscription to a queue that its messaging router does not have any more."""
    SLOW_TOKEN = "slow_token"  # noqa: S105
    """Push less often to a token whose owner was not seen for weeks."""
    VERIFY_TOKEN = "verify_token"  # noqa: S105
    """Send a verification push to a slowed token, which its owner's device answers."""
    REMOVE_TOKEN = "remove_token"  # noqa: S105
    """Delete a slowed token whose verification push was accepted, but never answered."""
    MOVE_WAKEUP = "move_wakeup"
    """Wake a token that is woken once a day, or less often, at another time of the day."""
    REPORT = "report"
    """Record that something is wrong which no router can repair by itself."""

    THROTTLE_TOKEN = "throttle_token"  # noqa: S105  no secret
    """Push to a token once in an interval at most, until the action expires."""
    THROTTLE_SUBSCRIPTION = "throttle_subscription"
    """Push for a subscription alone once in an interval at most, until the action expires."""
    THROTTLE_SERVER = "throttle_server"
    """Read notifications of a messaging router within a budget, until the action expires."""
    PAUSE_REGISTRATIONS = "pause_registrations"
    """Refuse new tokens from a network, or all, until the action expires."""
    ALERT = "alert"
    """Show the operator that something is wrong, until the action expires."""

    WAKE_FLEET = "wake_fleet"
    """Push to many tokens, so that their apps check for messages, at a rate."""
    CONTROL_WAKE = "control_wake"
    """Pause, resume or abort such a wake."""

    @property
    def subject(self) -> str:
        """The column of the journal whose hash names the subject, or `NO_SUBJECT`."""
        return KINDS[self].subject


class KindTraits(NamedTuple):
    """What every action of a kind has in common, and the caps unless a router sets others."""

    subject: str
    percent_a_day: float
    per_second: float


KINDS = {
    ActionKind.RESUBSCRIBE: KindTraits("subscription", 5.0, 50.0),
    ActionKind.DELETE_ORPHAN: KindTraits("subscription", 1.0, 10.0),
    ActionKind.SLOW_TOKEN: KindTraits("token", 2.0, 50.0),
    ActionKind.VERIFY_TOKEN: KindTraits("token", 2.0, 20.0),
    ActionKind.REMOVE_TOKEN: KindTraits("token", 1.0, 10.0),
    ActionKind.MOVE_WAKEUP: KindTraits("token", 20.0, 50.0),
    ActionKind.REPORT: KindTraits("server", 100.0, 10.0),
    ActionKind.THROTTLE_TOKEN: KindTraits("token", 5.0, 10.0),
    ActionKind.THROTTLE_SUBSCRIPTION: KindTraits("subscription", 5.0, 10.0),
    ActionKind.THROTTLE_SERVER: KindTraits("server", 5.0, 1.0),
    ActionKind.PAUSE_REGISTRATIONS: KindTraits("source", 100.0, 1.0),
    ActionKind.WAKE_FLEET: KindTraits(NO_SUBJECT, 10.0, 1.0),
    ActionKind.CONTROL_WAKE: KindTraits(NO_SUBJECT, 100.0, 10.0),
    ActionKind.ALERT: KindTraits(NO_SUBJECT, 100.0, 1.0),
}


class Refusal(Enum):
    """Why a router does not apply an action."""

    MALFORMED = "malformed"
    """It is not an action: a column is missing, or has a value that none can have."""
    FOREIGN = "foreign"
    """It is for another router."""
    FORGED = "forged"
    """Its ID is not that of its content, or the configured pipeline has not signed it."""
    STALE = "stale"
    """It is not valid any more."""
    CLOCK = "clock"
    """It was decided in the future, or is valid for too long: a clock is wrong."""
    UNKNOWN_SUBJECT = "unknown_subject"
    """Its hash is none of this router's."""
    DISAGREED = "disagreed"
    """What the router knows itself contradicts it."""


class MalformedAction(ValueError):
    """A row of the table that is not an action."""


@dataclass(frozen=True, slots=True)
class Action:
    """One decision. Times are in microseconds since the epoch."""

    action_id: str
    router: str
    kind: ActionKind
    subject: str
    evidence: str
    rule: str
    decided_at: int
    valid_until: int
    signature: bytes = field(repr=False)


def new_action(
    router: str,
    kind: ActionKind,
    subject: str,
    evidence: JsonMapping,
    rule: str,
    decided_at: int,
    valid_until: int,
    signer: KeyPair,
) -> Action:
    """Return a signed action. The same decision from the same evidence has the same ID."""
    text = json.dumps(evidence, sort_keys=True, separators=(",", ":"))
    action_id = _digest(router, kind.value, subject, text, rule)
    action = Action(action_id, router, kind, subject, text, rule, decided_at, valid_until, b"")
    return replace(action, signature=sign(signer.private, _signed(action)))


def decode_action(row: Mapping[str, object]) -> Action:
    """Return the action of a row. Raises `MalformedAction`."""
    try:
        kind = ActionKind(row["kind"])
        decided_at, valid_until = (
            _microseconds(row["decided_at"]),
            _microseconds(row["valid_until"]),
        )
        action_id, router, subject = row["action_id"], row["router"], row["subject"]
        evidence, rule, signature = row["evidence"], row["rule"], row["signature"]
    except (KeyError, ValueError) as exc:
        raise MalformedAction(str(exc)) from exc
    if not (
        isinstance(action_id, str)
        and isinstance(router, str)
        and isinstance(subject, str)
        and isinstance(evidence, str)
        and isinstance(rule, str)
        and isinstance(signature, bytes)
    ):
        raise MalformedAction("a column has a value of another type")
    if not (
        _HEX.fullmatch(action_id)
        and _ROUTER.fullmatch(router)
        and _HEX.fullmatch(subject)
        and _RULE.fullmatch(rule)
        and len(evidence) <= MAX_EVIDENCE
    ):
        raise MalformedAction("a column has a value that no action has")
    _check_evidence(evidence)
    return Action(
        action_id, router, kind, subject, evidence, rule, decided_at, valid_until, signature
    )


def _check_evidence(text: str) -> None:
    """Raise `MalformedAction` unless it is an object of numbers and text that a store can have."""
    try:
        found = json.loads(text, parse_float=_finite, parse_int=_int64, parse_constant=_int64)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:
        raise MalformedAction("the evidence is not JSON") from exc
    if not isinstance(found, dict):
        raise MalformedAction("the evidence is not an object")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number is too large")
    return value


def _int64(text: str) -> int:
    if not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise ValueError("a number is too large")
    return value


def check(action: Action, router: str, signer: bytes | None, now: int) -> Refusal | None:
    """Return why a router refuses an action, before it looks at its subject; None if it does not.

    `signer` is the public key of the pipeline; None accepts any, if somebody looks at each.
    """
    if action.router != router:
        return Refusal.FOREIGN
    content = _digest(
        action.router, action.kind.value, action.subject, action.evidence, action.rule
    )
    if action.action_id != content or not _is_signed(action, signer):
        return Refusal.FORGED
    is_long = action.valid_until - action.decided_at > MAX_VALIDITY
    if is_long or action.decided_at > now + MAX_CLOCK_SKEW:
        return Refusal.CLOCK
    return Refusal.STALE if action.valid_until <= now else None


def _is_signed(action: Action, signer: bytes | None) -> bool:
    if signer is None:
        return True
    try:
        return verify(signer, action.signature, _signed(action))
    except CryptoError:
        return False


def _signed(action: Action) -> bytes:
    times = f"{action.decided_at} {action.valid_until}"
    return f"heliograph action {action.action_id} {times}".encode()


def _digest(*parts: str) -> str:
    # A length before each part, so that no two lists of parts are the same bytes.
    encoded = (part.encode(errors="surrogatepass") for part in parts)
    text = b"".join(b"%d:%b" % (len(data), data) for data in encoded)
    return hashlib.blake2b(text, digest_size=16, person=b"helio-action").hexdigest()


def _microseconds(value: object) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("a time is missing")
    seconds = value.replace(microsecond=0).timestamp()
    return int(seconds) * SECOND + value.microsecond
