"""Events of a fleet before they are Arrow: columns of numbers, which are indices or null."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]  # numpy's own type of an array of any shape and kind


@dataclass(slots=True)
class Rows:
    """Unfinished events of one router, as columns of numbers; -1 is null."""

    kind: list[Array]
    at: list[Array]
    columns: dict[str, list[tuple[int, Array | int, int]]]
    """The first row, values and number of rows of each run of values; others are null."""
    size: int = 0

    def add(self, kind: str, at: Array, **columns: Array | int) -> None:
        count = len(at)
        self.kind.append(np.full(count, KIND_CODES[kind], np.int16))
        self.at.append(at)
        for name, value in columns.items():
            self.columns[name].append((self.size, value, count))
        self.size += count

    def column(self, name: str) -> Array:
        values = np.full(self.size, -1, np.int64)
        for first, value, count in self.columns[name]:
            values[first : first + count] = value
        return values


KIND_NAMES = (
    "router_started",
    "router_recovered",
    "token_registered",
    "token_verification_queued",
    "token_confirmed",
    "token_active",
    "token_invalid",
    "subscription_created",
    "subscription_status",
    "smp_up",
    "smp_down",
    "smp_subscribed",
    "notification_stored",
    "notification_delivered",
    "notification_removed",
    "nmsg_received",
    "nmsg_stored",
    "nmsg_unknown",
    "nmsg_dropped",
    "push_pending",
    "push_attempted",
    "push_accepted",
    "push_rejected",
    "push_retried",
    "push_expired",
    "agent_decrypted",
    "device_shown",
    "commands_counted",
    "client_connected",
    "smp_counted",
    "pushes_timed",
)
KIND_CODES = {name: code for code, name in enumerate(KIND_NAMES)}
NUMBERED = (
    "notification",
    "token",
    "subscription",
    "server",
    "push",
    "carried",
    "ntf_seq",
    "through",
    "mode",
    "status",
    "reason",
    "code",
    "attempt",
    "count",
    "expected_count",
    "command",
    "delay",
    "provider",
)
COMMANDS = ("TNEW", "TVFY", "SNEW", "SCHK", "PING")


def new_rows() -> Rows:
    return Rows([], [], {name: [] for name in NUMBERED})


def add_where(rows: Rows, kind: str, at: Array, where: Array, facts: Mapping[str, Array]) -> None:
    rows.add(kind, at[where], **{name: value[where] for name, value in facts.items()})


def full(count: int, value: int) -> Array:
    return np.full(count, value, np.int64)
