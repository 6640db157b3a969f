"""The events of the journal: which kinds there are and which columns. All else is made from it.

The writer, the reader, the pipeline's schema, the documentation and the checks take it from here.

How it may change: a new kind, or a new column that may be null, keeps the version, and readers
leave what they do not know. Columns are only added at the end; a name never gets another meaning
or type, and a kind or column that is no longer written stays listed. Whatever breaks one of these
rules is a new `SCHEMA_VERSION`, and readers must know both until the old segments have expired.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["COLUMNS", "KINDS", "SCHEMA_VERSION", "Column", "ColumnType", "Kind", "violations"]

SCHEMA_VERSION = 1


class ColumnType(Enum):
    """The name that Arrow, Parquet and SQL people know each by."""

    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    TEXT = "string"
    TEXTS = "list<string>"
    TIME = "timestamp[us, UTC]"


class Part(Enum):
    """Who writes an event."""

    SMP = "smp"
    NTF = "ntf"
    AGENT = "agent"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Column:
    """`required` columns are in every event; which kinds have the others, `Kind` says."""

    name: str
    type: ColumnType
    doc: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """An event of this kind always has the columns `has`, and may have those of `may_have`."""

    name: str
    parts: tuple[Part, ...]
    doc: str
    has: tuple[str, ...] = ()
    may_have: tuple[str, ...] = ()


_TEXT, _INT64, _INT32 = ColumnType.TEXT, ColumnType.INT64, ColumnType.INT32

_COLUMNS = (
    Column("schema", ColumnType.INT16, "The version of this schema.", True),
    Column("event_id", _TEXT, "Unique: `ROUTER-BOOT-SEQ`.", True),
    Column("router", _TEXT, "A random ID that a router made for its journal. No address.", True),
    Column("part", _TEXT, "What wrote it: " + ", ".join(part.value for part in Part) + ".", True),
    Column("boot", _INT64, "Which run of the router; a later run has a greater number.", True),
    Column("seq", _INT64, "1, 2, 3... in a run. A gap is a loss.", True),
    Column("kind", _TEXT, "What happened.", True),
    Column("at", ColumnType.TIME, "When, by the router's clock.", True),
    Column("mono", _INT64, "When, in nanoseconds of a clock that never goes back.", True),
    Column("provider", _TEXT, "The push provider, as `apns_prod`."),
    Column("own_server", ColumnType.BOOL, "Whether the messaging router is one of our own."),
    Column("smp_host", _TEXT, "The host of the messaging router; only if it is our own."),
    Column("server", _TEXT, "Keyed hash of the messaging router."),
    Column("token", _TEXT, "Keyed hash of the token ID."),
    Column("subscription", _TEXT, "Keyed hash of the subscription ID."),
    Column("notification", _TEXT, "Hash of the notification's nonce: the same in all parts."),
    Column("notifications", ColumnType.TEXTS, "The notifications that a push carries."),
    Column("push", _TEXT, "Keyed hash of what is owed: from `push_owed` to its end."),
    Column("ntf_seq", _INT64, "The order in which a notification router stored notifications."),
    Column("through", _INT64, "Every notification up to this `ntf_seq` is meant: see the kind."),
    Column("mode", _TEXT, "What a push is for: `message`, `verification` or `periodic`."),
    Column("status", _TEXT, "The state that something has now."),
    Column("reason", _TEXT, "Why, in a word of a fixed set or the provider's own."),
    Column("code", _INT32, "The provider's HTTP status."),
    Column("attempt", _INT32, "Which try, from 1; 0 before the first."),
    Column("count", _INT64, "How many."),
    Column("hash", _TEXT, "Keyed hash of what the other side says it has."),
    Column("expected_count", _INT64, "How many there should be."),
    Column("expected_hash", _TEXT, "Keyed hash of what there should be."),
    Column("command", _TEXT, "The name of a command of the protocol."),
    Column("interval", _INT32, "Minutes between periodic pushes; 0 if there are none."),
)

COLUMNS: Mapping[str, Column] = {column.name: column for column in _COLUMNS}

_SMP, _NTF, _AGENT, _DEVICE = ((part,) for part in Part)
_ROUTERS = (Part.SMP, Part.NTF)
_ALL = tuple(Part)
_SERVER = ("server", "own_server")
_PUSH = ("token", "provider", "mode", "push", "attempt")

_KINDS = (
    Kind(
        "router_started",
        _ROUTERS,
        "A run begins. All that was stored in earlier runs has an `ntf_seq` up to `through`.",
        may_have=("through",),
    ),
    Kind(
        "router_recovered",
        _ROUTERS,
        "All that the store still owed when the run began has been journaled: `count` events with"
        " the reason `recovered`. A notification up to `through` that none of them covers, and no"
        " event settled, was settled by an event that a kill took away.",
        has=("count",),
        may_have=("through",),
    ),
    Kind("router_stopped", _ROUTERS, "A run ends as it should; nothing of it is missing."),
    Kind(
        "journal_lost",
        _ALL,
        "`count` events could not be journaled since the last that could, or since the last"
        " `journal_lost`. Their `seq` are missing.",
        has=("count", "reason"),
    ),
    Kind(
        "client_connected",
        _ROUTERS,
        "Connections of clients since the last such event; not one for each.",
        has=("count",),
    ),
    Kind(
        "commands_counted",
        _ROUTERS,
        "Commands of one name since the last such event; not one for each.",
        has=("command", "count"),
    ),
    Kind("token_registered", _NTF, "A new token.", has=("token", "provider")),
    Kind(
        "token_verification_queued",
        _NTF,
        "Its owner will be sent a code, at first or again.",
        has=("token", "provider"),
    ),
    Kind(
        "token_confirmed",
        _NTF,
        "The provider accepted the push with the code.",
        has=("token", "provider"),
    ),
    Kind(
        "token_active",
        _NTF,
        "Its owner sent the code. With the reason `repeated`: again, and it was active already.",
        has=("token", "provider"),
        may_have=("reason",),
    ),
    Kind("token_replaced", _NTF, "Another device token took its place.", has=("token", "provider")),
    Kind(
        "token_deleted",
        _NTF,
        "By its owner, or because another registration of the device was verified (the reason is"
        " `superseded`). Settles all of its notifications up to `through`: nobody gets them.",
        has=("token", "through"),
        may_have=("provider", "reason"),
    ),
    Kind(
        "token_invalid",
        _NTF,
        "The provider does not know it. Settles all of its notifications up to `through`.",
        has=("token", "provider", "through"),
        may_have=("status", "reason"),
    ),
    Kind(
        "token_periodic",
        _NTF,
        "Its owner asked for periodic pushes, or for no more.",
        has=("token", "provider", "interval"),
    ),
    Kind(
        "subscription_created",
        _NTF,
        "To the notifications of a queue.",
        has=("token", "subscription", "own_server"),
        may_have=("smp_host", "provider"),
    ),
    Kind(
        "subscription_status",
        _NTF,
        "What the messaging router said to a new subscription, or of one that is not active."
        " That all of a connection are active again is `smp_subscribed`.",
        has=("subscription", "status", "own_server"),
        may_have=("smp_host",),
    ),
    Kind(
        "subscription_deleted",
        _NTF,
        "By its owner. Settles its notifications up to `through`: nobody gets them.",
        has=("token", "subscription", "through"),
    ),
    Kind("smp_up", _NTF, "Connected to a messaging router.", _SERVER, ("smp_host",)),
    Kind("smp_down", _NTF, "No longer connected.", _SERVER, ("smp_host",)),
    Kind(
        "smp_subscribed",
        _NTF,
        "After connecting, all of its queues were subscribed. By service with hashes (the reason"
        " is `service`), else by count alone.",
        has=(*_SERVER, "count", "expected_count"),
        may_have=("smp_host", "hash", "expected_hash", "reason"),
    ),
    Kind(
        "smp_drift",
        _NTF,
        "The router's account of our service differs from ours, which is made anew.",
        has=_SERVER,
        may_have=("smp_host", "count", "hash", "expected_count", "expected_hash"),
    ),
    Kind(
        "notification_stored",
        _SMP,
        "A message came whose sender wants its recipient notified; durable. With the reason"
        " `recovered`: it was waiting still when the run began.",
        has=("notification",),
        may_have=("reason",),
    ),
    Kind(
        "notification_delivered",
        _SMP,
        "Sent to whoever is subscribed. It may be sent again after a connection broke.",
        has=("notification",),
    ),
    Kind(
        "notification_expired",
        _SMP,
        "Nobody subscribed, or it did not arrive, for too long.",
        has=("notification",),
    ),
    Kind(
        "notification_removed",
        _SMP,
        "It was waiting, or its arrival not yet known, when its notifier or queue was deleted.",
        has=("notification",),
    ),
    Kind(
        "nmsg_received",
        _NTF,
        "From a messaging router. What became of it is one of the next four.",
        has=("notification", "own_server"),
        may_have=("smp_host",),
    ),
    Kind(
        "nmsg_stored",
        _NTF,
        "Durable, and its token is owed a push. One that a newer one of the same subscription"
        " replaced at once has it too.",
        has=("notification", "token", "subscription", "ntf_seq", "provider", "own_server"),
        may_have=("smp_host",),
    ),
    Kind(
        "nmsg_repeated",
        _NTF,
        "It, or a newer one of its subscription, was stored before: routers repeat what they do not"
        " know to have arrived.",
        has=("notification", "token", "subscription", "own_server"),
        may_have=("smp_host", "provider"),
    ),
    Kind(
        "nmsg_unknown",
        _NTF,
        "There is no such subscription; the hash is that of the ID that came in its place.",
        has=("notification", "own_server"),
        may_have=("smp_host", "subscription"),
    ),
    Kind(
        "nmsg_dropped",
        _NTF,
        "Its token cannot be pushed to, and has this status.",
        has=("notification", "token", "subscription", "status", "own_server"),
        may_have=("smp_host", "provider"),
    ),
    Kind(
        "push_owed",
        _NTF,
        "A token is owed a push. With the reason `recovered`: it was owed when the run began, and"
        " will settle its notifications up to `through`.",
        has=("token", "provider", "mode"),
        may_have=("push", "through", "notifications", "attempt", "reason"),
    ),
    Kind("push_attempted", _NTF, "Handed to the provider.", has=_PUSH),
    Kind(
        "push_accepted",
        _NTF,
        "By the provider. Settles all notifications of the token up to"
        " `through`: those listed were carried, the others superseded. It may carry some that an"
        " earlier push carried too. With the reason `empty` there was nothing left to carry.",
        has=_PUSH,
        may_have=("through", "notifications", "reason", "code"),
    ),
    Kind(
        "push_rejected",
        _NTF,
        "The provider says that the token is invalid. It is `token_invalid` that settles anything:"
        " the device may have been replaced meanwhile.",
        has=(*_PUSH, "reason"),
        may_have=("code",),
    ),
    Kind(
        "push_retried",
        _NTF,
        "Not accepted, and put off. The status is `refused` if it is our fault, else `later`.",
        has=(*_PUSH, "reason", "status"),
        may_have=("code",),
    ),
    Kind(
        "push_expired",
        _NTF,
        "Given up. Settles all notifications of the token up to `through`; a later push may carry"
        " them all the same.",
        has=(*_PUSH, "reason"),
        may_have=("through",),
    ),
    Kind("agent_decrypted", _AGENT, "A push was decrypted.", has=("notification",)),
    Kind("device_shown", _DEVICE, "Its user was shown something.", has=("notification",)),
)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}

REQUIRED = tuple(column.name for column in _COLUMNS if column.required)


def violations(event: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with an event; nothing if all is right. Of unknown kinds only what all have."""
    for name in event.keys() - COLUMNS.keys():
        yield f"{name}: there is no such column"
    for name in REQUIRED:
        if event.get(name) is None:
            yield f"{name}: missing"
    kind = KINDS.get(event.get("kind") or "")
    if kind is None:
        if event.get("schema") == SCHEMA_VERSION:
            yield "kind: unknown"
        return
    for name in kind.has:
        if event.get(name) is None:
            yield f"{name}: missing in {kind.name}"
    allowed = {*REQUIRED, *kind.has, *kind.may_have}
    for name, value in event.items():
        if value is not None and name in COLUMNS and name not in allowed:
            yield f"{name}: not a column of {kind.name}"
