"""An hour of a notification router, in the last minutes of which something goes wrong.

Ordinary tokens are quiet or busy, in bursts. Then some are flooded, through one subscription or
all, a provider fails and another is slow, and a messaging router is silent. Who is in trouble, and
since when, is known: `flooded_tokens`, `flooded_subscriptions`, `trouble_at`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from heliograph.sim.fleet.arrow import PROVIDERS, Names, hex_ids, table
from heliograph.sim.fleet.rows import NUMBERED, Array, full, new_rows

SECOND = 1_000_000
MINUTE = 60 * SECOND
BUCKET = 10 * SECOND
SPELL = 20 * SECOND
"""Microseconds for which notifications of a token are coalesced."""
ROUTER = "ab" * 8


@dataclass(frozen=True, slots=True)
class AbuseSettings:
    """Rates are notifications in a minute."""

    tokens: int = 600
    subscriptions: int = 4
    servers: int = 6
    minutes: int = 40
    trouble_minutes: int = 2
    abusers: int = 20
    """Half of them flood one subscription of a token, half of them all."""
    least_flood: int = 540
    most_flood: int = 3_000
    median_rate: float = 0.6
    busiest: float = 90.0
    """The rate of the busiest ordinary token."""
    failing: int = 2
    slow: int = 0
    """Indices of providers: which fails, and which is slow."""
    silent_server: int = 5
    start: int = 1_767_225_600 * SECOND
    phase: int = 0
    """Microseconds after `start` from which on the router counts by ten seconds."""
    seed: int = 1


class AbuseWorld:
    """Everything follows from the seed."""

    def __init__(self, settings: AbuseSettings | None = None) -> None:
        self.settings = chosen = settings or AbuseSettings()
        self._random = np.random.default_rng(chosen.seed)
        self._rows = new_rows()
        end = chosen.start + chosen.minutes * MINUTE
        self.trouble_at = end - chosen.trouble_minutes * MINUTE
        self._end = end
        self._ids = {
            "token": hex_ids(self._random, chosen.tokens),
            "subscription": hex_ids(self._random, chosen.tokens * chosen.subscriptions),
            "server": hex_ids(self._random, chosen.servers),
            "notification": hex_ids(self._random, 1),
        }
        self._provider = self._random.choice(len(PROVIDERS), chosen.tokens, p=(0.5, 0.1, 0.3, 0.1))
        abusers = np.arange(chosen.abusers) * (chosen.tokens // max(chosen.abusers, 1))
        self._by_one, self._by_all = abusers[::2], abusers[1::2]
        self._make()

    @property
    def flooded_tokens(self) -> set[str]:
        """Hashes of tokens that all of their subscriptions flood."""
        return {self._ids["token"][int(index)].as_py() for index in self._by_all}

    @property
    def flooded_subscriptions(self) -> set[str]:
        chosen = self._by_one * self.settings.subscriptions
        return {self._ids["subscription"][int(index)].as_py() for index in chosen}

    @property
    def silent_server(self) -> str:
        return str(self._ids["server"][self.settings.silent_server])

    @property
    def failing_provider(self) -> str:
        return PROVIDERS[self.settings.failing]

    @property
    def slow_provider(self) -> str:
        return PROVIDERS[self.settings.slow]

    def _make(self) -> None:
        chosen, random, rows = self.settings, self._random, self._rows
        begun = full(1, chosen.start)
        rows.add("router_started", begun, through=0)
        rows.add("router_recovered", begun + 1, through=0, count=0)
        servers = np.arange(chosen.servers)
        rows.add("smp_up", full(chosen.servers, chosen.start) + 2, server=servers)
        at, subscription = self._ordinary()
        for flooded, count in ((self._by_one, 1), (self._by_all, chosen.subscriptions)):
            rates = random.integers(chosen.least_flood, chosen.most_flood, len(flooded))
            for token, rate in zip(flooded, rates, strict=True):
                number = int(rate) * chosen.trouble_minutes
                at = np.append(at, random.integers(self.trouble_at, self._end, number))
                which = random.integers(0, count, number)
                subscription = np.append(subscription, token * chosen.subscriptions + which)
        order = np.argsort(at, kind="stable")
        at, subscription = at[order], subscription[order]
        token, server = subscription // chosen.subscriptions, subscription % chosen.servers
        numbers = np.arange(1, len(at) + 1)
        facts = {"token": token, "subscription": subscription, "server": server}
        rows.add("nmsg_stored", at, notification=0, ntf_seq=numbers, **facts)
        self._count_servers(at, server)
        self._push(at, token)

    def _ordinary(self) -> tuple[Array, Array]:
        """Return time and subscription of ordinary traffic: few tokens are busy, in bursts."""
        chosen, random = self.settings, self._random
        rate = np.minimum(
            chosen.median_rate * random.lognormal(0.0, 1.6, chosen.tokens), chosen.busiest
        )
        bursts = random.poisson(rate * chosen.minutes / 3.0)
        token = np.repeat(np.arange(chosen.tokens), bursts)
        begun = random.integers(chosen.start, self._end, len(token))
        sizes = random.geometric(1 / 3.0, len(token))
        token, begun = np.repeat(token, sizes), np.repeat(begun, sizes)
        at = begun + random.exponential(4 * SECOND, len(token)).astype(np.int64)
        which = random.integers(0, chosen.subscriptions, len(token))
        subscription = token * chosen.subscriptions + which
        is_silent = subscription % chosen.servers == chosen.silent_server
        kept = (at < self._end) & ~(is_silent & (at >= self.trouble_at))
        return at[kept], subscription[kept]

    def _count_servers(self, at: Array, server: Array) -> None:
        chosen, random = self.settings, self._random
        begun = chosen.start + chosen.phase
        ends = np.arange(begun + BUCKET, self._end + 1, BUCKET)
        for index in range(chosen.servers):
            mine = np.sort(at[server == index])
            counts = np.diff(np.searchsorted(mine, np.append(begun, ends)))
            delay = random.lognormal(np.log(3_000), 0.3, len(ends)).astype(np.int64)
            self._rows.add("smp_counted", ends - 1, server=index, count=counts, delay=delay)

    def _push(self, at: Array, token: Array) -> None:
        """Add one push for each token and spell, and the times that providers took."""
        random, rows = self._random, self._rows
        spells = np.unique(np.stack([token, at // SPELL]), axis=1)
        of_token, sent = spells[0], spells[1] * SPELL + random.integers(0, SPELL, spells.shape[1])
        inside = sent < self._end - SECOND
        of_token, sent = of_token[inside], sent[inside]
        provider = self._provider[of_token]
        is_trouble = (sent >= self.trouble_at) & (provider == self.settings.failing)
        failed = random.random(len(sent)) < np.where(is_trouble, 0.7, 0.01)
        push = {"push": np.arange(len(sent)), "mode": full(len(sent), 0), "token": of_token}
        for kind, where in (("push_accepted", ~failed), ("push_retried", failed)):
            some = {name: value[where] for name, value in push.items()}
            more = {"reason": 1, "status": 2, "code": 503} if kind == "push_retried" else {}
            rows.add(kind, sent[where], attempt=1, **some, **more)
        begun = self.settings.start + self.settings.phase
        ends = np.arange(begun + BUCKET, self._end + 1, BUCKET)
        for index in range(len(PROVIDERS)):
            mine = np.sort(sent[provider == index])
            counts = np.diff(np.searchsorted(mine, np.append(begun, ends)))
            is_slow = (ends > self.trouble_at) & (index == self.settings.slow)
            usual = np.where(is_slow, 6 * SECOND, 80_000)
            delay = (usual * random.lognormal(0.0, 0.2, len(ends))).astype(np.int64)
            has = counts > 0
            rows.add(
                "pushes_timed", ends[has] - 1, provider=index, count=counts[has], delay=delay[has]
            )

    def write(self, directory: Path, seconds: int | None = None) -> list[tuple[int, Path]]:
        """Write the journal; return when each segment ends, and its path.

        Segments of the trouble have `seconds` each, so that they can be read as they arrive.
        """
        chosen, rows = self.settings, self._rows
        kind, at = np.concatenate(rows.kind), np.concatenate(rows.at)
        order = np.argsort(at, kind="stable")
        columns = {name: rows.column(name)[order] for name in NUMBERED}
        kind, at = kind[order], at[order]
        names = Names(
            self._ids, self._provider, np.full((1, 1), -1), chosen.servers, chosen.servers
        )
        step = (seconds or chosen.trouble_minutes * 60) * SECOND
        ends = [self.trouble_at, *range(self.trouble_at + step, self._end + 1, step)]
        folder = directory / ROUTER
        folder.mkdir(parents=True, exist_ok=True)
        found, first = [], 0
        for number, end in enumerate(ends, 1):
            last = int(np.searchsorted(at, end))
            part = slice(first, last)
            source = ROUTER, "ntf", chosen.start
            some = {name: array[part] for name, array in columns.items()}
            events = table(names, source, first, chosen.start, kind[part], at[part], some)
            path = folder / f"{chosen.start}-{number:08d}.parquet"
            pq.write_table(events, path, compression="zstd")
            found.append((end, path))
            first = last
        return found
