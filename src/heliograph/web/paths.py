"""The path of one notification, from the events of all parts: what happened to it, in order.

The events are those of the pipeline's table and of the journal's segments, which has what the
pipeline has not taken yet. Pure, but for `read`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

__all__ = ["fate", "path_of", "read"]

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
_PUSHES = ("push_owed", "push_attempted", "push_accepted", "push_retried", "push_rejected")
_SETTLING = ("push_expired", "token_invalid", "token_deleted")

Event = dict[str, Any]


def read(files: Sequence[Path], notification: str) -> list[Event]:
    """The events that name a notification, and those of its token's pushes."""
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


def _rows(events: ds.Dataset, wanted: Any) -> list[Event]:
    known = set(events.schema.names)
    columns = [name for name in _COLUMNS if name in known]
    rows: list[Event] = events.to_table(columns=columns, filter=wanted).to_pylist()
    return rows


def path_of(events: Iterable[Event], notification: str) -> list[Event]:
    """In order, each once, up to the push that settled it; later pushes are not about it."""
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


def fate(path: Sequence[Event], notification: str) -> str:
    """In a sentence, for whoever asks."""
    by_kind = {event["kind"]: event for event in path}
    accepted = by_kind.get("push_accepted")
    if "device_shown" in by_kind:
        return "It was shown on the phone."
    if accepted is not None and notification in (accepted.get("notifications") or ()):
        return "The push provider accepted it."
    if accepted is not None:
        return "A newer notification went in its place, in a push that the provider accepted."
    for kind, text in (
        ("push_expired", "It was not accepted in time, and given up."),
        ("token_invalid", "The provider says that the device token is not valid any more."),
        ("token_deleted", "The token was deleted before the push."),
        ("nmsg_unknown", "The notification router knew no token for it."),
        ("nmsg_dropped", "The token could not be pushed to."),
        ("nmsg_stored", "A push is owed, and not yet accepted."),
        ("nmsg_received", "The notification router received it."),
        ("notification_delivered", "The messaging router delivered it to a notification router."),
        ("notification_removed", "Its queue or subscription was deleted before it was delivered."),
        ("notification_expired", "Nobody subscribed to it in time."),
    ):
        if kind in by_kind:
            return text
    return "It waits at the messaging router for a notification router to subscribe."
