"""A fleet of phones on paper: the journals that its routers would have written, and the truth.

For benchmarks and tests of the pipeline. A day has its rhythm, few tokens get most messages, a push
carries up to six notifications, some tokens die, some pushes expire, some phones keep a journal.
Everything follows from the seed. `Fleet.fates` is what became of each notification, known here
because it was decided here; the pipeline has to find it out from the events.
"""

import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from heliograph.journal.arrow import SCHEMA
from heliograph.journal.schema import SCHEMA_VERSION

Array = np.ndarray[Any, Any]

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
MAX_CARRIED = 6
LOOK_BACK = 10
PROVIDERS = ("apns_prod", "apns_dev", "firebase", "webpush")


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Shares are of notifications, or of tokens where it says so."""

    notifications: int = 10_000
    tokens: int = 500
    subscriptions: int = 8
    """The most of one token."""
    servers: int = 5
    own_servers: int = 3
    phones: int = 4
    """Journals of devices; a third of the tokens write to one."""
    start: int = 1_767_225_600 * SECOND
    """2026-01-01, in microseconds."""
    duration: int = 2 * DAY
    coalescing: int = 20 * SECOND
    waiting: float = 0.004
    removed: float = 0.002
    unknown: float = 0.002
    dropped: float = 0.001
    retried: float = 0.02
    """Of pushes."""
    invalid: float = 0.02
    """Of tokens, as the next two."""
    expired: float = 0.02
    owed: float = 0.02
    shown: float = 0.95
    """Of what phones that keep a journal decrypted."""
    seed: int = 1


@dataclass(slots=True)
class _Rows:
    """Events of one router in the making, as columns of numbers; -1 is null."""

    kind: list[Array]
    at: list[Array]
    columns: dict[str, list[tuple[int, Array | int, int]]]
    """Where values begin, what they are, how many; all others are null."""
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


_KIND_NAMES = (
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
    "push_owed",
    "push_attempted",
    "push_accepted",
    "push_rejected",
    "push_retried",
    "push_expired",
    "agent_decrypted",
    "device_shown",
    "commands_counted",
    "client_connected",
)
KIND_CODES = {name: code for code, name in enumerate(_KIND_NAMES)}
_NUMBERED = (
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
    "has",
)
_MODES = ("message", "verification")
_STATUSES = ("ACTIVE", "INVALID", "later")
_REASONS = ("BadDeviceToken", "ServiceUnavailable", "ttl")
_COMMANDS = ("TNEW", "TVFY", "SNEW", "SCHK", "PING")
_PROVIDER_OF = frozenset(
    KIND_CODES[name] for name in _KIND_NAMES if name.startswith(("token_", "push_"))
) | {KIND_CODES["nmsg_stored"], KIND_CODES["nmsg_dropped"], KIND_CODES["subscription_created"]}
_SERVER_OF = frozenset(
    KIND_CODES[name] for name in _KIND_NAMES if name.startswith(("smp_", "nmsg_", "subscription_"))
)


class Fleet:
    """Made at once; `write` or `tables` give the journals."""

    def __init__(self, settings: FleetSettings | None = None) -> None:
        self.settings = settings or FleetSettings()
        self._random = np.random.default_rng(self.settings.seed)
        self.fates: dict[str, int] = {}
        self.accepted_pushes = 0
        self._make()

    @property
    def events(self) -> int:
        return sum(rows.size for _, _, rows in self._routers)

    def tables(self, rows_per_segment: int = 100_000) -> Iterator[tuple[str, int, pa.Table]]:
        """Router, number of the segment, events."""
        for router, part, rows in self._routers:
            kind, at = np.concatenate(rows.kind), np.concatenate(rows.at)
            order = np.argsort(at, kind="stable")
            columns = {name: rows.column(name)[order] for name in _NUMBERED}
            kind, at = kind[order], at[order]
            for number, first in enumerate(range(0, len(kind), rows_per_segment), 1):
                chosen = slice(first, first + rows_per_segment)
                part_of = {name: array[chosen] for name, array in columns.items()}
                table = self._table(router, part, first, kind[chosen], at[chosen], part_of)
                yield router, number, table

    def write(self, directory: Path, rows_per_segment: int = 100_000) -> list[Path]:
        """As sealed segments of a journal."""
        paths = []
        for router, number, table in self.tables(rows_per_segment):
            folder = directory / router
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self.boot}-{number:08d}.parquet"
            pq.write_table(table, path, compression="zstd")
            paths.append(path)
        return paths

    @property
    def boot(self) -> int:
        return self.settings.start * 1000

    # What happens.

    def _make(self) -> None:
        chosen, random = self.settings, self._random
        count, tokens = chosen.notifications, chosen.tokens
        self._ids = {
            "notification": _hex_ids(random, count),
            "token": _hex_ids(random, tokens),
            "subscription": _hex_ids(random, tokens * chosen.subscriptions),
            "server": _hex_ids(random, chosen.servers),
        }
        self._provider = random.choice(len(PROVIDERS), tokens, p=(0.6, 0.05, 0.25, 0.1))
        names = [f"smp{number:02d}" for number in range(chosen.servers)]
        phones = [f"phone{number:02d}" for number in range(chosen.phones)]
        self._routers = [
            *((name, "smp", _rows()) for name in names),
            ("ntf00", "ntf", _rows()),
            *((name, "device", _rows()) for name in phones),
        ]
        ntf = self._routers[chosen.servers][2]
        self._begin(ntf)
        at, token, subscription = self._traffic()
        server = subscription % chosen.servers
        fate = np.full(count, "", dtype="U13")
        drawn = random.random(count)
        limits = np.cumsum([chosen.waiting, chosen.removed, chosen.unknown, chosen.dropped])
        waiting = drawn < limits[0]
        removed = (drawn >= limits[0]) & (drawn < limits[1])
        unknown = (drawn >= limits[1]) & (drawn < limits[2])
        dropped = (drawn >= limits[2]) & (drawn < limits[3])
        fate[waiting], fate[removed] = "waiting", "removed"
        fate[unknown | dropped] = "undeliverable"
        number = np.arange(count)
        for index in range(chosen.servers):
            rows, here = self._routers[index][2], server == index
            rows.add("notification_stored", at[here], notification=number[here])
            gone = here & removed
            rows.add("notification_removed", at[gone] + HOUR, notification=number[gone])
            sent = here & ~(waiting | removed)
            rows.add("notification_delivered", at[sent] + 2000, notification=number[sent])
        arrived = ~(waiting | removed)
        received = at + 4000 + random.integers(0, 3000, count)
        facts = {"notification": number, "server": server}
        _add(ntf, "nmsg_received", received, arrived, facts)
        _add(ntf, "nmsg_unknown", received + 500, unknown, facts)
        facts |= {"token": token, "subscription": subscription}
        _add(ntf, "nmsg_dropped", received + 500, dropped, facts | {"status": _all(count, 1)})
        stored = arrived & ~unknown & ~dropped
        order = np.argsort(received[stored], kind="stable")
        ntf_seq = np.full(count, -1, np.int64)
        ntf_seq[np.flatnonzero(stored)[order]] = chosen.start + np.arange(1, len(order) + 1)
        _add(ntf, "nmsg_stored", received + 1500, stored, facts | {"ntf_seq": ntf_seq})
        self._push(ntf, fate, received, token, subscription, ntf_seq)
        names_of, counts = np.unique(fate, return_counts=True)
        self.fates = {str(name): int(n) for name, n in zip(names_of, counts, strict=True)}

    def _begin(self, ntf: _Rows) -> None:
        """Routers start, phones register, clients talk."""
        chosen, random = self.settings, self._random
        start = np.full(1, chosen.start, np.int64)
        for _, part, rows in self._routers:
            if part != "device":
                rows.add("router_started", start, through=chosen.start)
                rows.add("router_recovered", start + 1, through=chosen.start, count=0)
        servers = np.arange(chosen.servers)
        begun = _all(chosen.servers, chosen.start)
        ntf.add("smp_up", begun + 1000, server=servers)
        ntf.add("smp_subscribed", begun + 9000, server=servers, count=100, expected_count=100)
        down = begun + random.integers(chosen.duration // 4, chosen.duration // 2, chosen.servers)
        ntf.add("smp_down", down, server=servers)
        ntf.add("smp_up", down + 3 * SECOND, server=servers)
        subscribed = down + 3 * SECOND + random.integers(10_000, SECOND, chosen.servers)
        ntf.add("smp_subscribed", subscribed, server=servers, count=100, expected_count=100)
        tokens = np.arange(chosen.tokens)
        at = chosen.start + random.integers(0, 60 * SECOND, chosen.tokens)
        push = {"token": tokens, "push": -2 - tokens, "mode": _all(chosen.tokens, 1)}
        ntf.add("token_registered", at, token=tokens)
        ntf.add("token_verification_queued", at + 10, token=tokens)
        ntf.add("push_owed", at + 20, **push)
        ntf.add("push_attempted", at + 3000, attempt=1, **push)
        ntf.add("push_accepted", at + 80_000, attempt=1, through=chosen.start, **push)
        ntf.add("token_confirmed", at + 80_010, token=tokens)
        ntf.add("token_active", at + 900_000, token=tokens)
        number = np.arange(chosen.tokens * chosen.subscriptions)
        facts: dict[str, Any] = {
            "token": number // chosen.subscriptions,
            "subscription": number,
            "server": number % chosen.servers,
        }
        later = at[facts["token"]] + SECOND + random.integers(0, SECOND, len(number))
        ntf.add("subscription_created", later, **facts)
        ntf.add("subscription_status", later + 5000, status=0, **facts)
        minutes = np.arange(chosen.start, chosen.start + chosen.duration, 60 * SECOND)
        commands = np.arange(len(minutes)) % len(_COMMANDS)
        ntf.add("commands_counted", minutes, command=commands, count=commands + 1)
        ntf.add("client_connected", minutes + 1, count=commands + 2)

    def _traffic(self) -> tuple[Array, Array, Array]:
        """When, to which token, of which subscription; in order of time and in bursts."""
        chosen, random = self.settings, self._random
        count = chosen.notifications
        bursts = max(count // 3, 1)
        days = max(chosen.duration // DAY, 1)
        begun = random.integers(0, days, bursts) * DAY
        begun += (random.beta(2.5, 2.0, bursts) * DAY).astype(np.int64)
        begun %= max(chosen.duration - 4 * HOUR, 1)
        token = np.minimum(random.pareto(1.1, bursts) * chosen.tokens / 20, chosen.tokens - 1)
        token = random.permutation(chosen.tokens)[token.astype(np.int64)]
        favourite = random.integers(0, chosen.subscriptions, bursts)
        burst = random.integers(0, bursts, count)
        at = begun[burst] + random.exponential(3 * SECOND, count).astype(np.int64)
        burst, at = burst[np.argsort(at)], np.sort(at)
        other = random.integers(0, chosen.subscriptions, count)
        own = np.where(random.random(count) < 0.6, favourite[burst], other)
        mine = token[burst]
        return chosen.start + 120 * SECOND + at, mine, mine * chosen.subscriptions + own

    def _push(
        self,
        ntf: _Rows,
        fate: Array,
        received: Array,
        token: Array,
        subscription: Array,
        ntf_seq: Array,
    ) -> None:
        """One push for what came to a token within one spell; each carries the newest six."""
        chosen, random = self.settings, self._random
        stored = np.flatnonzero(ntf_seq >= 0)
        order = stored[np.lexsort((ntf_seq[stored], token[stored]))]
        owner, at = token[order], received[order] + 1500
        spell = at // chosen.coalescing
        new = np.ones(len(order), bool)
        new[1:] = (owner[1:] != owner[:-1]) | (spell[1:] != spell[:-1])
        last = np.append(np.flatnonzero(new)[1:] - 1, len(order) - 1)
        group = np.cumsum(new) - 1
        pushes = len(last)
        of_token = owner[last]
        final = np.append(of_token[1:] != of_token[:-1], True)
        drawn = random.random(chosen.tokens)[of_token]
        limits = np.cumsum([chosen.invalid, chosen.expired, chosen.owed])
        rejected = final & (drawn < limits[0])
        expired = final & (drawn >= limits[0]) & (drawn < limits[1])
        owed = final & (drawn >= limits[1]) & (drawn < limits[2])
        accepted = ~(rejected | expired | owed)
        retried = accepted & (random.random(pushes) < chosen.retried)
        through = ntf_seq[order[last]]
        first_at = at[np.flatnonzero(new)]
        latency = (random.lognormal(11.0, 0.8, pushes)).astype(np.int64)
        sent = at[last] + 3000
        facts: dict[str, Any] = {"token": of_token, "push": np.arange(pushes)}
        facts["mode"] = _all(pushes, 0)
        everyone = np.ones(pushes, bool)
        _add(ntf, "push_owed", first_at + 10, everyone, facts | {"attempt": _all(pushes, 0)})
        first, second = _all(pushes, 1), _all(pushes, 2)
        _add(ntf, "push_attempted", sent, everyone, facts | {"attempt": first})
        later = facts | {"attempt": first, "reason": first, "status": second}
        _add(ntf, "push_retried", sent + 50_000, retried, later | {"code": _all(pushes, 503)})
        _add(ntf, "push_attempted", sent + SECOND, retried, facts | {"attempt": second})
        done = sent + latency + retried * SECOND
        end = facts | {"attempt": np.where(retried, 2, 1), "through": through}
        _add(ntf, "push_accepted", done, accepted, end | {"carried": np.arange(pushes)})
        why = facts | {"attempt": first, "reason": _all(pushes, 0), "code": _all(pushes, 410)}
        _add(ntf, "push_rejected", done, rejected, why)
        dead = {"token": of_token, "through": through, "reason": _all(pushes, 0)}
        _add(ntf, "token_invalid", done + 10, rejected, dead | {"status": first})
        _add(ntf, "push_expired", done + HOUR, expired, end | {"reason": second})
        self._carried = self._carry(order, last, owner, subscription)
        self.accepted_pushes = int(accepted.sum())
        carried = self._carried[accepted]
        listed = np.unique(carried[carried >= 0])
        fate[order] = "superseded"
        for name, chosen_pushes in (("rejected", rejected), ("expired", expired), ("owed", owed)):
            fate[order[chosen_pushes[group]]] = name
        fate[listed] = "accepted"
        self._show(fate, listed, token, received)

    def _carry(self, order: Array, last: Array, owner: Array, subscription: Array) -> Array:
        """For each push the newest notification of each of its newest subscriptions."""
        back = last[:, None] - np.arange(LOOK_BACK)[None, :]
        inside = (back >= 0) & (owner[np.maximum(back, 0)] == owner[last][:, None])
        numbers = order[np.maximum(back, 0)]
        subscriptions = np.where(inside, subscription[numbers], -1)
        for column in range(1, LOOK_BACK):
            newer = (subscriptions[:, :column] == subscriptions[:, column : column + 1]).any(axis=1)
            inside[:, column] &= ~newer
        inside &= np.cumsum(inside, axis=1) <= MAX_CARRIED
        return np.where(inside, numbers, -1)

    def _show(self, fate: Array, listed: Array, token: Array, received: Array) -> None:
        """A third of the phones keep a journal."""
        chosen, random = self.settings, self._random
        mine = listed[token[listed] % 3 == 0]
        shown = random.random(len(mine)) < chosen.shown
        at = received[mine] + 3 * chosen.coalescing
        for index in range(chosen.phones):
            rows = self._routers[chosen.servers + 1 + index][2]
            here = token[mine] % chosen.phones == index
            rows.add("agent_decrypted", at[here], notification=mine[here])
            rows.add("device_shown", at[here & shown] + 40_000, notification=mine[here & shown])
        if chosen.phones:
            fate[mine[shown]] = "shown"

    # Into Arrow.

    def _table(
        self, router: str, part: str, first: int, kind: Array, at: Array, columns: dict[str, Array]
    ) -> pa.Table:
        count = len(kind)
        seq = pa.array(np.arange(first + 1, first + count + 1))
        boot = str(self.boot)
        prefix = pa.scalar(f"{router}-{boot}-")
        texts = pc.binary_join_element_wise(prefix, seq.cast(pa.string()), "")
        device = np.isin(kind, [KIND_CODES["device_shown"]])
        parts = pa.array(np.where(device, "device", "agent")) if part == "device" else None
        token = columns["token"]
        server = np.where(np.isin(kind, list(_SERVER_OF)), columns["server"], -1)
        own = server < self.settings.own_servers
        hosts = pa.array([f"smp{number}.example.org" for number in range(self.settings.servers)])
        provider = np.where(np.isin(kind, list(_PROVIDER_OF)), token, -1)
        smp_kinds = [KIND_CODES[name] for name in ("smp_up", "smp_down", "smp_subscribed")]
        values: dict[str, Any] = {
            "schema": pa.array(np.full(count, SCHEMA_VERSION, np.int16)),
            "event_id": texts,
            "router": _repeat(router, count),
            "part": parts if parts is not None else _repeat(part, count),
            "boot": pa.array(np.full(count, self.boot)),
            "seq": seq,
            "kind": pa.array(_KIND_NAMES).take(pa.array(kind)),
            "at": pa.array(at).cast(SCHEMA.field("at").type),
            "mono": pa.array((at - self.settings.start) * 1000),
            "provider": _take(
                pa.array(PROVIDERS),
                np.where(provider >= 0, self._provider[np.maximum(provider, 0)], -1),
            ),
            "own_server": pa.array(own, mask=server < 0),
            "smp_host": _take(hosts, np.where(own, server, -1)),
            "server": _take(self._ids["server"], np.where(np.isin(kind, smp_kinds), server, -1)),
            "token": _take(
                self._ids["token"],
                np.where(kind == KIND_CODES["subscription_status"], -1, token),
            ),
            "subscription": _take(self._ids["subscription"], columns["subscription"]),
            "notification": _take(self._ids["notification"], columns["notification"]),
            "notifications": self._lists(columns["carried"]),
            "push": _push_ids(columns["push"]),
            "mode": _take(pa.array(_MODES), columns["mode"]),
            "status": _take(pa.array(_STATUSES), columns["status"]),
            "reason": _take(pa.array(_REASONS), columns["reason"]),
            "command": _take(pa.array(_COMMANDS), columns["command"]),
        }
        for name in ("ntf_seq", "through", "count", "expected_count"):
            values[name] = pa.array(columns[name], mask=columns[name] < 0)
        for name in ("code", "attempt"):
            values[name] = pa.array(columns[name].astype(np.int32), mask=columns[name] < 0)
        arrays = [
            values[field.name] if field.name in values else pa.nulls(count, field.type)
            for field in SCHEMA
        ]
        return pa.table(arrays, schema=SCHEMA)

    def _lists(self, carried: Array) -> pa.Array:
        rows = np.full((len(carried), LOOK_BACK), -1, np.int64)
        has = carried >= 0
        rows[has] = self._carried[carried[has]]
        lengths = (rows >= 0).sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        flat = rows[:, ::-1][rows[:, ::-1] >= 0]
        values = self._ids["notification"].take(pa.array(flat))
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~has))


def _rows() -> _Rows:
    return _Rows([], [], {name: [] for name in _NUMBERED})


def _add(rows: _Rows, kind: str, at: Array, where: Array, facts: dict[str, Any]) -> None:
    rows.add(kind, at[where], **{name: value[where] for name, value in facts.items()})


def _all(count: int, value: int) -> Array:
    return np.full(count, value, np.int64)


def _hex_ids(random: np.random.Generator, count: int) -> pa.Array:
    data = pa.py_buffer(binascii.hexlify(random.bytes(16 * count)))
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 32)
    return pa.StringArray.from_buffers(count, offsets, data)


def _push_ids(pushes: Array) -> pa.Array:
    """Any text that is one push's own; -1 is none, and what is below is a verification's."""
    texts = pa.array(np.where(pushes < 0, -pushes, pushes)).cast(pa.string())
    kinds = pa.array(np.where(pushes < 0, "v", "m"))
    joined = pc.binary_join_element_wise(kinds, texts, "")
    return pc.if_else(pa.array(pushes == -1), pa.scalar(None, pa.string()), joined)


def _repeat(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _take(values: pa.Array, indices: Array) -> pa.Array:
    return values.take(pa.array(indices, mask=indices < 0))
