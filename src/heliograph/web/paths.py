"""The path of one notification: the events of all parts about it, in order.

The events come from the pipeline's table and from segments of the journal that the pipeline has not
read yet. Pure, except for `read`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from heliograph.documents import JsonObject

__all__ = ["outcome", "path_of", "read"]

_COLUMNS = (
    "event_id",
    "part",
    "kind",
    "at",
    "token",
    "notification",
    "notifications",
    "ntf_seq",
    "through",
    "mode",
    "status",
    "reason",
    "code",
    "attempt",
    "provider",
)
_PUSHES = ("push_pending", "push_attempted", "push_accepted", "push_retried", "push_rejected")
_SETTLING = ("push_expired", "token_invalid", "token_deleted")

Event = JsonObject


def read(files: Sequence[Path], notification: str) -> list[Event]:
    """Return the events that name a notification, and those of its token's pushes."""
    if not files:
        return []
    events = ds.dataset([str(file) for file in files], format="parquet")
    named = _rows(events, pc.field("notification") == notification)
    stored = [event for event in named if event["kind"] == "nmsg_stored"]
    of_token: list[Event] = []
    for event in stored:
        same = (pc.field("token") == event["token"]) & (pc.field("through") >= event["ntf_seq"])
        wanted = pa.array([*_PUSHES, *_SETTLING])
        of_token += _rows(events, same & pc.field("kind").isin(wanted))
    return [*named, *of_token]


def _rows(events: ds.Dataset, wanted: pc.Expression) -> list[Event]:
    known = set(events.schema.names)
    columns = [name for name in _COLUMNS if name in known]
    rows: list[Event] = events.to_table(columns=columns, filter=wanted).to_pylist()
    return rows


def path_of(events: Iterable[Event], notification: str) -> list[Event]:
    """Return each event once, in order, up to the push that settled the notification."""
    unique = {event["event_id"]: event for event in events}
    ordered = sorted(unique.values(), key=lambda event: (event["at"], event["event_id"]))
    path = []
    settled = False
    for event in ordered:
        about_it = event.get("notification") == notification
        if about_it or (not settled and event.get("mode") in (None, "message")):
            path.append(event)
        if not about_it and event["kind"] in ("push_accepted", *_SETTLING):
            settled = True
    return path


def outcome(path: Sequence[Event], notification: str) -> str:
    """Return the outcome as a sentence."""
    by_kind = {event["kind"]: event for event in path}
    accepted = by_kind.get("push_accepted")
    if "device_shown" in by_kind:
        return "It was shown on the phone."
    if accepted is not None and notification in (accepted.get("notifications") or ()):
        return "The push provider accepted it."
    if accepted is not None:
        return "It was coalesced: the provider accepted a push with a newer notification."
    for kind, text in (
        ("push_expired", "Its push expired: no provider accepted it in time."),
        ("token_invalid", "The provider rejected the device token."),
        ("token_deleted", "The token was deleted before the push."),
        ("nmsg_unknown", "The notification router knew no token for it."),
        ("nmsg_dropped", "The token does not take pushes in its state."),
        ("nmsg_stored", "A push is pending: no provider has accepted it yet."),
        ("nmsg_received", "The notification router received it."),
        ("notification_delivered", "The messaging router delivered it to a notification router."),
        ("notification_removed", "Its queue or subscription was deleted before it was delivered."),
        ("notification_expired", "It expired: no notification router subscribed in time."),
    ):
        if kind in by_kind:
            return text
    return "It waits at the messaging router for a notification router to subscribe."
