"""The columns of the journal: names, types and meanings, in the order in which they are stored.

Columns are only added at the end, and may be null; a name never gets another meaning or type. A
change that breaks one of these rules is a new `SCHEMA_VERSION`, and readers must know both
versions until the old segments have expired.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = ["COLUMNS", "REQUIRED", "SCHEMA_VERSION", "Column", "ColumnType", "Part"]

SCHEMA_VERSION = 1


class ColumnType(Enum):
    """Column types, by the name that Arrow, Parquet and SQL use."""

    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    TEXT = "string"
    TEXTS = "list<string>"
    TIME = "timestamp[us, UTC]"


class Part(Enum):
    """The program that writes an event."""

    SMP = "smp"
    NTF = "ntf"
    AGENT = "agent"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `required` ones are in every event; `KINDS` defines which kinds have the others."""

    name: str
    type: ColumnType
    doc: str
    required: bool = False


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
    Column("push", _TEXT, "Keyed hash of the pending push: the same in all of its events."),
    Column("ntf_seq", _INT64, "The order in which a notification router stored notifications."),
    Column("through", _INT64, "Every notification up to this `ntf_seq` is meant: see the kind."),
    Column("mode", _TEXT, "What a push is for: `message`, `verification` or `periodic`."),
    Column("status", _TEXT, "The state that something has now."),
    Column("reason", _TEXT, "Why, in a word of a fixed set or the provider's own."),
    Column("code", _INT32, "The provider's HTTP status."),
    Column("attempt", _INT32, "Number of the attempt, from 1; 0 before the first."),
    Column("count", _INT64, "How many."),
    Column("hash", _TEXT, "Keyed hash of what the other side says it has."),
    Column("expected_count", _INT64, "How many there should be."),
    Column("expected_hash", _TEXT, "Keyed hash of what there should be."),
    Column("command", _TEXT, "The name of a command of the protocol."),
    Column("interval", _INT32, "Minutes between periodic pushes; 0 if there are none."),
    Column("action", _TEXT, "ID of an action that the pipeline decided on."),
    Column("action_kind", _TEXT, "What kind of action, as `resubscribe`."),
    Column("delay", _INT64, "Mean microseconds until an answer."),
    Column("source", _TEXT, "Keyed hash of a busy network; another one every day."),
    Column("wake", _TEXT, "ID of a wake of many tokens, as `heliograph fleet` prints it."),
)

COLUMNS: Mapping[str, Column] = {column.name: column for column in _COLUMNS}

REQUIRED = tuple(column.name for column in _COLUMNS if column.required)
