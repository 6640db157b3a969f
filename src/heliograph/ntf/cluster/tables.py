"""The roster in the database: functions of a transaction, and of a process's place in it."""

from collections.abc import Sequence
from typing import NamedTuple

from heliograph.db.database import NEWER, Migration, is_contract
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError, DatabaseFenced, DatabaseNewer
from heliograph.db.sql import FENCED
from heliograph.ntf.cluster.load import Load
from heliograph.ntf.cluster.roster import Member, Roster, Shard, ShardId
from heliograph.ntf.store.subscriptions.subscriptions import IdRange

SPLIT_AT = 20_000
"""Subscriptions at one messaging router from which they are split."""
SHARDS = 8
"""Shards of a split messaging router."""

_PROCESS = "process"
_NOW = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


class Process(NamedTuple):
    """What a process says of itself when it joins."""

    name: str
    """Host and process ID, for messages to the operator."""
    fingerprint: bytes
    version: str


def now(tx: Transaction) -> int:
    """Return milliseconds of the database's clock."""
    [[found]] = tx.query(_NOW)
    return int(found)


def check(tx: Transaction, process: Process) -> None:
    """Raise `DatabaseError` if live members are another router."""
    [[exists]] = tx.query("SELECT CAST(to_regclass('processes') AS TEXT)")
    if exists is None:
        return
    rows = tx.query(
        "SELECT p.name, p.fingerprint FROM processes p JOIN leases l ON l.process_id = p.process_id"
        " WHERE l.expires_at > ?",
        (now(tx),),
    )
    for name, fingerprint in rows:
        if fingerprint != process.fingerprint:
            raise DatabaseError(
                f"a router with other keys uses this store (process {name}): give each router a"
                " store of its own, or the processes of one router the same keys"
            )


def _migrated(tx: Transaction) -> set[str]:
    return {name for (name,) in tx.query("SELECT name FROM migrations")}


def contract(tx: Transaction, migrations: Sequence[Migration]) -> bool:
    """Remove what only earlier versions use, unless one of them is a member."""
    done = _migrated(tx)
    wanted = [item for item in migrations if item.contracts and item.name not in done]
    if wanted:
        last = migrations[-1].name
        if tx.query("SELECT 1 FROM processes WHERE schema <> ? LIMIT 1", (last,)):
            return False
        for migration in wanted:
            tx.define(migration.sql)
            tx.execute(
                "INSERT INTO migrations (name, at) VALUES (?, ?)", (migration.name, now(tx) // 1000)
            )
    return True


def join(
    tx: Transaction,
    process: Process,
    lease: int,
    first_seq: int,
    migrations: Sequence[Migration],
) -> int:
    """Add a member and return its ID."""
    check(tx, process)
    known = {migration.name for migration in migrations}
    if any(is_contract(name) for name in _migrated(tx) - known):
        raise DatabaseNewer(NEWER)
    _raise_numbers(tx, first_seq)
    [[process_id]] = tx.query(
        "INSERT INTO numbers (name, value) VALUES (?, 1) ON CONFLICT (name)"
        " DO UPDATE SET value = numbers.value + 1 RETURNING value",
        (_PROCESS,),
    )
    tx.execute(
        "INSERT INTO processes (process_id, name, fingerprint, version, schema, is_leaving)"
        " VALUES (?, ?, ?, ?, ?, 0)",
        (process_id, *process, migrations[-1].name),
    )
    tx.execute(
        "INSERT INTO leases (process_id, expires_at, skew) VALUES (?, ?, 0)",
        (process_id, now(tx) + lease),
    )
    return int(process_id)


def _raise_numbers(tx: Transaction, first_seq: int) -> None:
    """Let numbers begin with `first_seq`, unless greater ones were taken."""
    tx.execute("CREATE SEQUENCE IF NOT EXISTS notification_seq")
    tx.execute("ALTER SEQUENCE notification_seq INCREMENT BY 1")  # nobody takes any meanwhile
    tx.query(
        "SELECT setval('notification_seq', GREATEST(last_value, ?)) FROM notification_seq",
        (first_seq,),
    )


def take_numbers(tx: Transaction, count: int) -> list[int]:
    """Take ascending numbers, greater than all taken before by anybody."""
    rows = tx.query(
        "SELECT nextval('notification_seq') FROM generate_series(1, CAST(? AS INTEGER))", (count,)
    )
    return [number for (number,) in rows]


def lock_tokens(tx: Transaction, queues: Sequence[tuple[int, bytes]]) -> None:
    """Lock the tokens of queues, as `heliograph.ntf.store.tokens.lock` does."""
    if not queues:
        return
    servers, notifiers = zip(*queues, strict=True)
    tx.execute(
        "SELECT COUNT(*) FROM (SELECT 1 FROM tokens WHERE token_id IN (SELECT s.token_id"
        " FROM unnest(CAST(? AS BIGINT[]), CAST(? AS BYTEA[])) q (server_id, notifier_id)"
        " JOIN subscriptions s ON s.server_id = q.server_id AND s.notifier_id = q.notifier_id)"
        " ORDER BY token_id FOR NO KEY UPDATE) locked",
        (list(servers), list(notifiers)),
    )


def wait_for_others(tx: Transaction) -> None:
    """Wait until all transactions of other members that run now have ended."""
    tx.query("SELECT 1 FROM processes ORDER BY process_id FOR SHARE")


def renew(tx: Transaction, process_id: int, lease: int, wall: int) -> None:
    """Renew a lease, and store by how much a clock that says `wall` differs, in one statement.

    It waits for no transaction but one that finds the lease ended.
    """
    renewed = tx.query(
        "UPDATE leases SET expires_at = t.now + ?, skew = ? - t.now FROM"
        " (SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT) AS now) t"
        " WHERE process_id = ? RETURNING process_id",
        (lease, wall, process_id),
    )
    if not renewed:
        raise DatabaseFenced(FENCED)


def removable(tx: Transaction, at: int) -> set[int]:
    """Lock and return the members whose lease has ended, and that are in no transaction.

    None of them can renew its lease, or begin a transaction, before this one has ended. A member
    whose lease is gone, as in a table edited by hand, has none to renew.
    """
    idle = tx.query(
        "SELECT p.process_id, l.process_id IS NULL FROM processes p"
        " LEFT JOIN leases l ON l.process_id = p.process_id"
        " WHERE l.process_id IS NULL OR l.expires_at <= ? FOR UPDATE OF p SKIP LOCKED",
        (at,),
    )
    ended = tx.query_in(
        "SELECT process_id FROM leases WHERE process_id IN {in} AND expires_at <= ?"
        " FOR UPDATE SKIP LOCKED",
        [process_id for process_id, has_none in idle if not has_none],
        at,
    )
    without = {process_id for process_id, has_none in idle if has_none}
    return without | {process_id for (process_id,) in ended}


def load(tx: Transaction) -> Roster:
    members = tx.query(
        "SELECT p.process_id, COALESCE(l.expires_at, 0), p.is_leaving"
        " FROM processes p LEFT JOIN leases l ON l.process_id = p.process_id"
    )
    shards = tx.query(
        "SELECT server_id, shard, owner, previous, generation, subscriptions, rate FROM shards"
    )
    return Roster(
        {number: Member(expires_at, bool(leaving)) for number, expires_at, leaving in members},
        {
            (server, shard): Shard(owner, previous, Load(*load), generation)
            for server, shard, owner, previous, generation, *load in shards
        },
    )


def store(tx: Transaction, before: Roster, after: Roster) -> None:
    """Store what changed. What a removed member had claimed is free without its row."""
    removed = [(process_id,) for process_id in before.members.keys() - after.members.keys()]
    tx.many("DELETE FROM processes WHERE process_id = ?", removed)
    tx.many("DELETE FROM leases WHERE process_id = ?", removed)
    tx.many(
        "UPDATE leases SET expires_at = ? WHERE process_id = ? AND expires_at > ?",
        [
            (member.expires_at, process_id, member.expires_at)
            for process_id, member in after.members.items()
            if before.members[process_id].expires_at > member.expires_at
        ],
    )
    tx.many(
        "UPDATE shards SET owner = ?, previous = ?, generation = ?, subscriptions = ?, rate = ?"
        " WHERE server_id = ? AND shard = ?",
        [
            (shard.owner, shard.previous, shard.generation, *shard.load, *key)
            for key, shard in after.shards.items()
            if before.shards.get(key) != shard
        ],
    )


def names(tx: Transaction) -> dict[int, tuple[str, int]]:
    """Return name and clock skew, in milliseconds, of each member."""
    rows = tx.query(
        "SELECT p.process_id, p.name, COALESCE(l.skew, 0)"
        " FROM processes p LEFT JOIN leases l ON l.process_id = p.process_id"
    )
    return {number: (name, skew) for number, name, skew in rows}


class ProcessRow(NamedTuple):
    """A member, for operators; times in milliseconds."""

    name: str
    version: str
    skew: int
    expires_at: int


def processes(tx: Transaction) -> list[ProcessRow]:
    """Return all members, those that joined first before others."""
    rows = tx.query(
        "SELECT p.name, p.version, COALESCE(l.skew, 0), COALESCE(l.expires_at, 0)"
        " FROM processes p LEFT JOIN leases l ON l.process_id = p.process_id ORDER BY p.process_id"
    )
    return [ProcessRow(*row) for row in rows]


def set_leaving(tx: Transaction, process_id: int, is_leaving: bool) -> None:
    tx.execute(
        "UPDATE processes SET is_leaving = ? WHERE process_id = ?", (int(is_leaving), process_id)
    )


def add_missing_shards(tx: Transaction) -> None:
    """Add the shards that messaging routers with subscriptions should have and have not."""
    tx.execute(
        "INSERT INTO shards (server_id, shard) SELECT v.server_id, n.shard FROM servers v"
        " CROSS JOIN LATERAL generate_series(0, v.shards - 1) n (shard)"
        " WHERE EXISTS (SELECT 1 FROM subscriptions s WHERE s.server_id = v.server_id)"
        " AND NOT EXISTS"
        " (SELECT 1 FROM shards h WHERE h.server_id = v.server_id AND h.shard = n.shard)"
    )


def remove_unused(tx: Transaction) -> None:
    """Remove shards of routers without subscriptions, and what was passed on and deleted.

    Also shards and leases that cannot be, as in tables edited by hand.
    """
    tx.execute(
        "DELETE FROM shards WHERE NOT EXISTS"
        " (SELECT 1 FROM subscriptions s WHERE s.server_id = shards.server_id)"
    )
    tx.execute(
        "UPDATE servers SET shards = 1 WHERE shards NOT BETWEEN 1 AND 256 OR shards > 1"
        " AND NOT EXISTS (SELECT 1 FROM shards h WHERE h.server_id = servers.server_id)"
    )
    tx.execute(
        "DELETE FROM new_subscriptions WHERE NOT EXISTS (SELECT 1 FROM subscriptions s"
        " WHERE s.subscription_id = new_subscriptions.subscription_id)"
    )
    tx.execute(
        "DELETE FROM shards USING servers v"
        " WHERE v.server_id = shards.server_id AND shards.shard NOT BETWEEN 0 AND v.shards - 1"
    )
    tx.execute("DELETE FROM leases WHERE process_id NOT IN (SELECT process_id FROM processes)")


def split_large(tx: Transaction, at: int = SPLIT_AT) -> None:
    """Split the messaging routers that have many subscriptions."""
    rows = tx.query(
        "SELECT h.server_id FROM shards h JOIN servers v ON v.server_id = h.server_id"
        " WHERE v.shards = 1 AND (SELECT COUNT(*) FROM (SELECT 1 FROM subscriptions s"
        " WHERE s.server_id = h.server_id LIMIT ?) counted) >= ?",
        (at, at),
    )
    for (server_id,) in rows:
        tx.execute("UPDATE servers SET shards = ? WHERE server_id = ?", (SHARDS, server_id))
        tx.execute(
            "UPDATE shards SET subscriptions = subscriptions / ?, rate = rate / ?"
            " WHERE server_id = ?",
            (SHARDS, SHARDS, server_id),
        )
        tx.many(
            "INSERT INTO shards (server_id, shard, subscriptions, rate)"
            " SELECT server_id, ?, subscriptions, rate FROM shards"
            " WHERE server_id = ? AND shard = 0",
            [(number, server_id) for number in range(1, SHARDS)],
        )


def splits(tx: Transaction) -> dict[int, int]:
    """Return the number of shards of the messaging routers that are split."""
    rows = tx.query("SELECT server_id, shards FROM servers WHERE shards > 1")
    return dict(rows)


def range_of(shard: int, count: int) -> IdRange | None:
    """Return the subscription IDs of a shard; None if there is one shard for all."""
    if count == 1:
        return None
    end = (shard + 1) * 256 // count
    return IdRange(bytes([shard * 256 // count]), bytes([end]) if end < 256 else None)


def shard_of(subscription_id: bytes, count: int) -> int:
    return subscription_id[0] * count // 256


def is_owner(
    tx: Transaction,
    key: ShardId,
    process_id: int,
    *,
    count: int,
    generation: int,
    locked: bool = True,
) -> bool:
    """Return whether a process owns this generation of a shard.

    `count` is how many shards the messaging router must have. If `locked`, the answer holds until
    the transaction ends.
    """
    owned = (
        "SELECT 1 FROM shards h JOIN servers v ON v.server_id = h.server_id"
        " WHERE h.server_id = ? AND h.shard = ? AND h.owner = ? AND h.generation = ?"
        " AND v.shards = ?"
    )
    lock = " FOR SHARE OF h, v" if locked else ""
    return bool(tx.query(owned + lock, (*key, process_id, generation, count)))


def pass_on(tx: Transaction, new: Sequence[tuple[bytes, int]]) -> None:
    """Leave new subscriptions, each with its server's ID, to the owners of their shards."""
    tx.many(
        "INSERT INTO new_subscriptions (subscription_id, server_id) VALUES (?, ?)"
        " ON CONFLICT (subscription_id) DO NOTHING",
        new,
    )


def passed_on(tx: Transaction) -> list[tuple[bytes, int]]:
    return [(row[0], row[1]) for row in tx.query("SELECT * FROM new_subscriptions LIMIT 10000")]


def take_passed_on(tx: Transaction, subscription_ids: Sequence[bytes]) -> None:
    tx.many(
        "DELETE FROM new_subscriptions WHERE subscription_id = ?",
        [(item,) for item in subscription_ids],
    )


MINUTE = 60 * 10**9
_NANOSECONDS = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000 AS BIGINT)"


def count_registration(tx: Transaction, network: bytes, limit: float) -> bool:
    """Count a registration, unless a network had too many within a minute of the database."""
    [[at]] = tx.query(_NANOSECONDS)
    tx.execute("DELETE FROM registrations WHERE network = ? AND at <= ?", (network, at - MINUTE))
    [[count]] = tx.query("SELECT COUNT(*) FROM registrations WHERE network = ?", (network,))
    if count >= limit:
        return False
    tx.execute(
        "INSERT INTO registrations (network, at) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (network, at),
    )
    return True


def forget_registrations(tx: Transaction) -> None:
    [[at]] = tx.query(_NANOSECONDS)
    tx.execute("DELETE FROM registrations WHERE at <= ?", (at - MINUTE,))
