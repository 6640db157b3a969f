"""Convert the events of a fleet to the tables of a journal."""

import binascii
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heliograph.journal.schema import SCHEMA_VERSION
from heliograph.journal.storage.arrow import SCHEMA
from heliograph.sim.fleet.rows import COMMANDS, KIND_CODES, KIND_NAMES, Array

PROVIDERS = ("apns_prod", "apns_dev", "firebase", "webpush")
_MODES = ("message", "verification")
_STATUSES = ("ACTIVE", "INVALID", "later")
_REASONS = ("BadDeviceToken", "ServiceUnavailable", "ttl")
_PROVIDER_OF = frozenset(
    KIND_CODES[name] for name in KIND_NAMES if name.startswith(("token_", "push_"))
) | {KIND_CODES["nmsg_stored"], KIND_CODES["nmsg_dropped"], KIND_CODES["subscription_created"]}
_SERVER_NAMED = ("smp_up", "smp_down", "smp_subscribed", "smp_counted")
_SERVER_OF = frozenset(
    KIND_CODES[name] for name in KIND_NAMES if name.startswith(("smp_", "nmsg_", "subscription_"))
)


@dataclass(frozen=True, slots=True)
class Names:
    """What the numbers of events stand for: IDs, providers of tokens, and carried notifications."""

    ids: dict[str, pa.StringArray]
    provider: Array
    carried: Array
    servers: int
    own_servers: int


def table(
    names: Names,
    source: tuple[str, str, int],
    first: int,
    start: int,
    kind: Array,
    at: Array,
    columns: dict[str, Array],
) -> pa.Table:
    """Return a segment's events. `source` are router, part and boot; `first` counts from 0."""
    router, part, boot = source
    count = len(kind)
    seq = pa.array(np.arange(first + 1, first + count + 1))
    prefix = pa.scalar(f"{router}-{boot}-")
    texts = pc.binary_join_element_wise(prefix, seq.cast(pa.string()), "")
    device = np.isin(kind, [KIND_CODES["device_shown"]])
    parts = pa.array(np.where(device, "device", "agent")) if part == "device" else None
    token = columns["token"]
    server = np.where(np.isin(kind, list(_SERVER_OF)), columns["server"], -1)
    own = server < names.own_servers
    hosts = pa.array([f"smp{number}.example.org" for number in range(names.servers)])
    provider = np.where(np.isin(kind, list(_PROVIDER_OF)), token, -1)
    smp_kinds = [KIND_CODES[name] for name in _SERVER_NAMED]
    of_token = np.where(provider >= 0, names.provider[np.maximum(provider, 0)], -1)
    values: dict[str, pa.Array] = {
        "schema": pa.array(np.full(count, SCHEMA_VERSION, np.int16)),
        "event_id": texts,
        "router": _repeat(router, count),
        "part": parts if parts is not None else _repeat(part, count),
        "boot": pa.array(np.full(count, boot)),
        "seq": seq,
        "kind": pa.array(KIND_NAMES).take(pa.array(kind)),
        "at": pa.array(at).cast(SCHEMA.field("at").type),
        "mono": pa.array((at - start) * 1000),
        "provider": _take(pa.array(PROVIDERS), np.maximum(of_token, columns["provider"])),
        "own_server": pa.array(own, mask=server < 0),
        "smp_host": _take(hosts, np.where(own, server, -1)),
        "server": _take(names.ids["server"], np.where(np.isin(kind, smp_kinds), server, -1)),
        "token": _take(
            names.ids["token"],
            np.where(kind == KIND_CODES["subscription_status"], -1, token),
        ),
        "subscription": _take(names.ids["subscription"], columns["subscription"]),
        "notification": _take(names.ids["notification"], columns["notification"]),
        "notifications": _lists(names, columns["carried"]),
        "push": _push_ids(columns["push"]),
        "mode": _take(pa.array(_MODES), columns["mode"]),
        "status": _take(pa.array(_STATUSES), columns["status"]),
        "reason": _take(pa.array(_REASONS), columns["reason"]),
        "command": _take(pa.array(COMMANDS), columns["command"]),
    }
    for name in ("ntf_seq", "through", "count", "expected_count", "delay"):
        values[name] = pa.array(columns[name], mask=columns[name] < 0)
    for name in ("code", "attempt"):
        values[name] = pa.array(columns[name].astype(np.int32), mask=columns[name] < 0)
    arrays = [
        values[field.name] if field.name in values else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.table(arrays, schema=SCHEMA)


def _lists(names: Names, carried: Array) -> pa.Array:
    rows = np.full((len(carried), names.carried.shape[1]), -1, np.int64)
    has = carried >= 0
    rows[has] = names.carried[carried[has]]
    lengths = (rows >= 0).sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = rows[:, ::-1][rows[:, ::-1] >= 0]
    values = names.ids["notification"].take(pa.array(flat))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~has))


def hex_ids(random: np.random.Generator, count: int) -> pa.Array:
    data = pa.py_buffer(binascii.hexlify(random.bytes(16 * count)))
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 32)
    return pa.StringArray.from_buffers(count, offsets, data)


def _push_ids(pushes: Array) -> pa.Array:
    """Return a unique text per push; -1 is none, and lower numbers are verifications."""
    texts = pa.array(np.where(pushes < 0, -pushes, pushes)).cast(pa.string())
    kinds = pa.array(np.where(pushes < 0, "v", "m"))
    joined = pc.binary_join_element_wise(kinds, texts, "")
    return pc.if_else(pa.array(pushes == -1), pa.scalar(None, pa.string()), joined)


def _repeat(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _take(values: pa.Array, indices: Array) -> pa.Array:
    return values.take(pa.array(indices, mask=indices < 0))
