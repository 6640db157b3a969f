"""Synthetic journals of a fleet of phones and its routers, with the true outcomes.

For benchmarks and tests of the pipeline. A day has its rhythm, few tokens get most messages, a push
carries up to six notifications, some tokens die, some pushes expire, some phones keep a journal.
Everything follows from the seed. `Fleet.outcomes` are the true outcomes of all notifications; the
pipeline must compute the same from the events.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.journal.heads import Head, write_head
from heliograph.sim.fleet.arrow import PROVIDERS, Names, hex_ids, table
from heliograph.sim.fleet.rows import (
    COMMANDS,
    NUMBERED,
    Array,
    Rows,
    add_where,
    full,
    new_rows,
)

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
MAX_CARRIED = 6
LOOK_BACK = 10


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of a fleet. Shares are of notifications unless stated otherwise."""

    notifications: int = 10_000
    tokens: int = 500
    subscriptions: int = 8
    """Maximum number of subscriptions per token."""
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
    """Share of pushes."""
    invalid: float = 0.02
    """Share of tokens, like the next two."""
    expired: float = 0.02
    pending: float = 0.02
    shown: float = 0.95
    """Share of the notifications decrypted by phones with a journal."""
    seed: int = 1


class Fleet:
    """A generated fleet; `write` or `tables` return its journals."""

    def __init__(self, settings: FleetSettings | None = None) -> None:
        self.settings = settings or FleetSettings()
        self._random = np.random.default_rng(self.settings.seed)
        self.outcomes: dict[str, int] = {}
        self._make()

    @property
    def events(self) -> int:
        return sum(rows.size for _, _, rows in self._routers)

    def tables(self, rows_per_segment: int = 100_000) -> Iterator[tuple[str, int, pa.Table]]:
        """Yield the router, the number of the segment and its events."""
        world = self.settings
        names = Names(self._ids, self._provider, self._carried, world.servers, world.own_servers)
        for router, part, rows in self._routers:
            kind, at = np.concatenate(rows.kind), np.concatenate(rows.at)
            order = np.argsort(at, kind="stable")
            columns = {name: rows.column(name)[order] for name in NUMBERED}
            kind, at = kind[order], at[order]
            for number, first in enumerate(range(0, len(kind), rows_per_segment), 1):
                chosen = slice(first, first + rows_per_segment)
                part_of = {name: array[chosen] for name, array in columns.items()}
                source = router, part, self.boot
                found = table(names, source, first, world.start, kind[chosen], at[chosen], part_of)
                yield router, number, found

    def write(self, directory: Path, rows_per_segment: int = 100_000) -> list[Path]:
        """Write sealed segments of a journal, of runs that have ended; return their paths."""
        paths = []
        for router, number, events in self.tables(rows_per_segment):
            folder = directory / router
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self.boot}-{number:08d}.parquet"
            pq.write_table(events, path, compression="zstd")
            paths.append(path)
            last = events.slice(len(events) - 1).to_pylist()[0]
            at = int(last["at"].timestamp() * 1e6)
            head = Head(router, self.boot, last["part"], number, last["seq"], at, ended=True)
            write_head(directory, head)
        return paths

    @property
    def boot(self) -> int:
        return self.settings.start * 1000

    # Events.

    def _make(self) -> None:
        chosen, random = self.settings, self._random
        count, tokens = chosen.notifications, chosen.tokens
        self._ids = {
            "notification": hex_ids(random, count),
            "token": hex_ids(random, tokens),
            "subscription": hex_ids(random, tokens * chosen.subscriptions),
            "server": hex_ids(random, chosen.servers),
        }
        self._provider = random.choice(len(PROVIDERS), tokens, p=(0.6, 0.05, 0.25, 0.1))
        names = [f"smp{number:02d}" for number in range(chosen.servers)]
        phones = [f"phone{number:02d}" for number in range(chosen.phones)]
        self._routers = [
            *((name, "smp", new_rows()) for name in names),
            ("ntf00", "ntf", new_rows()),
            *((name, "device", new_rows()) for name in phones),
        ]
        ntf = self._routers[chosen.servers][2]
        self._begin(ntf)
        at, token, subscription = self._traffic()
        server = subscription % chosen.servers
        outcome = np.full(count, "", dtype="U13")
        drawn = random.random(count)
        limits = np.cumsum([chosen.waiting, chosen.removed, chosen.unknown, chosen.dropped])
        waiting = drawn < limits[0]
        removed = (drawn >= limits[0]) & (drawn < limits[1])
        unknown = (drawn >= limits[1]) & (drawn < limits[2])
        dropped = (drawn >= limits[2]) & (drawn < limits[3])
        outcome[waiting], outcome[removed] = "waiting", "removed"
        outcome[unknown | dropped] = "undeliverable"
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
        add_where(ntf, "nmsg_received", received, arrived, facts)
        add_where(ntf, "nmsg_unknown", received + 500, unknown, facts)
        facts |= {"token": token, "subscription": subscription}
        add_where(ntf, "nmsg_dropped", received + 500, dropped, facts | {"status": full(count, 1)})
        stored = arrived & ~unknown & ~dropped
        order = np.argsort(received[stored], kind="stable")
        ntf_seq = np.full(count, -1, np.int64)
        ntf_seq[np.flatnonzero(stored)[order]] = chosen.start + np.arange(1, len(order) + 1)
        add_where(ntf, "nmsg_stored", received + 1500, stored, facts | {"ntf_seq": ntf_seq})
        self._push(ntf, outcome, received, token, subscription, ntf_seq)
        names_of, counts = np.unique(outcome, return_counts=True)
        self.outcomes = {str(name): int(n) for name, n in zip(names_of, counts, strict=True)}

    def _begin(self, ntf: Rows) -> None:
        """Add the start of routers, registrations of phones and client traffic."""
        chosen, random = self.settings, self._random
        start = np.full(1, chosen.start, np.int64)
        for _, part, rows in self._routers:
            if part != "device":
                rows.add("router_started", start, through=chosen.start)
                rows.add("router_recovered", start + 1, through=chosen.start, count=0)
        servers = np.arange(chosen.servers)
        begun = full(chosen.servers, chosen.start)
        ntf.add("smp_up", begun + 1000, server=servers)
        ntf.add("smp_subscribed", begun + 9000, server=servers, count=100, expected_count=100)
        down = begun + random.integers(chosen.duration // 4, chosen.duration // 2, chosen.servers)
        ntf.add("smp_down", down, server=servers)
        ntf.add("smp_up", down + 3 * SECOND, server=servers)
        subscribed = down + 3 * SECOND + random.integers(10_000, SECOND, chosen.servers)
        ntf.add("smp_subscribed", subscribed, server=servers, count=100, expected_count=100)
        tokens = np.arange(chosen.tokens)
        at = chosen.start + random.integers(0, 60 * SECOND, chosen.tokens)
        push = {"token": tokens, "push": -2 - tokens, "mode": full(chosen.tokens, 1)}
        ntf.add("token_registered", at, token=tokens)
        ntf.add("token_verification_queued", at + 10, token=tokens)
        ntf.add("push_pending", at + 20, **push)
        ntf.add("push_attempted", at + 3000, attempt=1, **push)
        ntf.add("push_accepted", at + 80_000, attempt=1, through=chosen.start, **push)
        ntf.add("token_confirmed", at + 80_010, token=tokens)
        ntf.add("token_active", at + 900_000, token=tokens)
        number = np.arange(chosen.tokens * chosen.subscriptions)
        facts: dict[str, Array] = {
            "token": number // chosen.subscriptions,
            "subscription": number,
            "server": number % chosen.servers,
        }
        later = at[facts["token"]] + SECOND + random.integers(0, SECOND, len(number))
        ntf.add("subscription_created", later, **facts)
        ntf.add("subscription_status", later + 5000, status=0, **facts)
        minutes = np.arange(chosen.start, chosen.start + chosen.duration, 60 * SECOND)
        commands = np.arange(len(minutes)) % len(COMMANDS)
        ntf.add("commands_counted", minutes, command=commands, count=commands + 1)
        ntf.add("client_connected", minutes + 1, count=commands + 2)

    def _traffic(self) -> tuple[Array, Array, Array]:
        """Return time, token and subscription of notifications, ordered by time, in bursts."""
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
        ntf: Rows,
        outcome: Array,
        received: Array,
        token: Array,
        subscription: Array,
        ntf_seq: Array,
    ) -> None:
        """Add one push per token and interval; each carries the newest six notifications."""
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
        limits = np.cumsum([chosen.invalid, chosen.expired, chosen.pending])
        rejected = final & (drawn < limits[0])
        expired = final & (drawn >= limits[0]) & (drawn < limits[1])
        pending = final & (drawn >= limits[1]) & (drawn < limits[2])
        accepted = ~(rejected | expired | pending)
        retried = accepted & (random.random(pushes) < chosen.retried)
        through = ntf_seq[order[last]]
        first_at = at[np.flatnonzero(new)]
        latency = (random.lognormal(11.0, 0.8, pushes)).astype(np.int64)
        sent = at[last] + 3000
        facts: dict[str, Array] = {"token": of_token, "push": np.arange(pushes)}
        facts["mode"] = full(pushes, 0)
        everyone = np.ones(pushes, bool)
        add_where(
            ntf, "push_pending", first_at + 10, everyone, facts | {"attempt": full(pushes, 0)}
        )
        first, second = full(pushes, 1), full(pushes, 2)
        add_where(ntf, "push_attempted", sent, everyone, facts | {"attempt": first})
        later = facts | {"attempt": first, "reason": first, "status": second}
        add_where(ntf, "push_retried", sent + 50_000, retried, later | {"code": full(pushes, 503)})
        add_where(ntf, "push_attempted", sent + SECOND, retried, facts | {"attempt": second})
        done = sent + latency + retried * SECOND
        end = facts | {"attempt": np.where(retried, 2, 1), "through": through}
        add_where(ntf, "push_accepted", done, accepted, end | {"carried": np.arange(pushes)})
        why = facts | {
            "attempt": first,
            "reason": full(pushes, 0),
            "code": full(pushes, 410),
        }
        add_where(ntf, "push_rejected", done, rejected, why)
        dead = {"token": of_token, "through": through, "reason": full(pushes, 0)}
        add_where(ntf, "token_invalid", done + 10, rejected, dead | {"status": first})
        add_where(ntf, "push_expired", done + HOUR, expired, end | {"reason": second})
        self._carried = self._carry(order, last, owner, subscription)
        carried = self._carried[accepted]
        listed = np.unique(carried[carried >= 0])
        outcome[order] = "coalesced"
        for name, chosen_pushes in (
            ("rejected", rejected),
            ("expired", expired),
            ("pending", pending),
        ):
            outcome[order[chosen_pushes[group]]] = name
        outcome[listed] = "accepted"
        self._show(outcome, listed, token, received)

    def _carry(self, order: Array, last: Array, owner: Array, subscription: Array) -> Array:
        """Return the newest notification of each of the newest subscriptions, for each push."""
        back = last[:, None] - np.arange(LOOK_BACK)[None, :]
        inside = (back >= 0) & (owner[np.maximum(back, 0)] == owner[last][:, None])
        numbers = order[np.maximum(back, 0)]
        subscriptions = np.where(inside, subscription[numbers], -1)
        for column in range(1, LOOK_BACK):
            newer = (subscriptions[:, :column] == subscriptions[:, column : column + 1]).any(axis=1)
            inside[:, column] &= ~newer
        inside &= np.cumsum(inside, axis=1) <= MAX_CARRIED
        return np.where(inside, numbers, -1)

    def _show(self, outcome: Array, listed: Array, token: Array, received: Array) -> None:
        """Add the events of phones: a third of them keep a journal."""
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
            outcome[mine[shown]] = "shown"
