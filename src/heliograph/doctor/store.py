"""Checks of the store: integrity, version and old pending pushes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.db.errors import DatabaseBusy, DatabaseError, DatabaseLost, DatabaseUrlError
from heliograph.doctor.findings import Findings, good, note, problem, warning
from heliograph.doctor.subject import Subject
from heliograph.ntf.cluster.tables import now as database_now, processes
from heliograph.ntf.store.totals import totals
from heliograph.runtime.reference.storelog import UnfinishedImport

__all__ = ["check_import", "check_pending", "check_processes", "check_store", "opened"]

MAX_SKEW = 30.0
"""The same as in `heliograph.ntf.service`, which takes long to import."""


class NoStore(Exception):
    """The store was not created yet."""


@contextmanager
def opened(subject: Subject) -> Iterator[Dialect]:
    """Open the store for reading. Raises `NoStore` and `DatabaseError`."""
    if subject.store_file is not None and not subject.store_file.exists():
        raise NoStore
    dialect = open_dialect(subject.store_url, read_only=True)
    try:
        yield dialect
    finally:
        dialect.close()


def check_store(subject: Subject) -> Findings:
    try:
        with opened(subject) as dialect:
            yield from _integrity(subject, dialect)
            yield from _migrations(subject, dialect)
            if subject.store_file is None:
                yield from _skew(dialect)
    except NoStore:
        yield note("store", "there is none yet: the router was never started")
    except DatabaseLost as exc:
        yield problem(
            "store",
            f"it cannot be reached: {exc}",
            "start PostgreSQL, or correct [store] url; a password may be in ~/.pgpass, or in the"
            f" environment as {subject.part.prefix}_STORE_URL (see --env-file)",
        )
    except DatabaseUrlError as exc:
        yield problem("store", f"it cannot be found: {exc}", "correct [store] url")
    except DatabaseBusy:
        yield warning("store", "it is busy", "try again when the router is less busy")
    except DatabaseError as exc:
        yield problem(
            "store",
            f"it cannot be read: {exc}",
            "stop the router, and restore the last backup; see 'Back up and restore' in the"
            " runbook",
        )


def _integrity(subject: Subject, dialect: Dialect) -> Findings:
    if subject.store_file is None:
        dialect.query("SELECT 1", ())
        return
    found = [text for (text,) in dialect.query("PRAGMA quick_check(3)", ())]
    if found != ["ok"]:
        yield problem(
            "store",
            "it is damaged: SQLite finds errors in it",
            "stop the router, keep a copy of the file, and restore the last backup",
        )


def _migrations(subject: Subject, dialect: Dialect) -> Findings:
    done = _done(dialect)
    known = [migration.name for migration in subject.part.migrations]
    if done - set(known):
        yield problem(
            "store",
            "a later version of Heliograph made it",
            "upgrade Heliograph, or restore a backup of this version",
        )
    elif set(known) - done:
        advice = "it is brought up to date when the router starts"
        if subject.part.name == "ntf":
            advice += f", or before by `{subject.command('start')} --maintenance`"
        yield note("store", "it is of an earlier version", advice)
    else:
        yield good("store", "it can be read, and is of this version")


def _done(dialect: Dialect) -> set[str]:
    try:
        return {name for (name,) in dialect.query("SELECT name FROM migrations", ())}
    except DatabaseLost:
        raise
    except DatabaseError:
        return set()  # no such table: nobody has started yet


def _skew(dialect: Dialect) -> Findings:
    [[theirs]] = dialect.query("SELECT EXTRACT(EPOCH FROM clock_timestamp())::float8", ())
    skew = abs(time.time() - theirs)
    if skew > MAX_SKEW:
        yield problem(
            "clock",
            f"it differs by {skew:.0f} s from that of PostgreSQL's machine",
            "have a time service set both",
        )


def check_pending(subject: Subject) -> Findings:
    """Check for pushes that are pending for too long."""
    if subject.part.name != "ntf":
        return
    try:
        with opened(subject) as dialect:
            if not {migration.name for migration in subject.part.migrations} <= _done(dialect):
                return
            found = totals(Transaction(dialect))
    except (NoStore, DatabaseError):
        return  # `check_store` reports it
    count = sum(found.pending_pushes.values())
    age = 0.0 if found.oldest_pending is None else time.time() - found.oldest_pending
    text = f"{count} pending, the oldest for {age:.0f} s" if count else "none is pending"
    if age <= subject.thresholds.pending_age:
        yield good("pushes", text)
    else:
        yield warning(
            "pushes",
            text,
            "if the router runs, a provider refuses or cannot be reached: see its log, --online,"
            " and 'Pushes are late' in the runbook",
        )


def check_processes(subject: Subject) -> Findings:
    """Check the processes that are the router, on all machines."""
    if subject.part.name != "ntf" or subject.store_file is not None:
        return
    try:
        with opened(subject) as dialect:
            tx = Transaction(dialect)
            found, now = processes(tx), database_now(tx)
    except DatabaseError:
        return  # `check_store` reports it, or there is no such table yet
    alive = [item for item in found if item.expires_at > now]
    if not alive:
        return  # one process alone has no row
    versions = sorted({item.version for item in alive})
    names = ", ".join(item.name for item in alive)
    yield good(
        "processes", f"{len(alive)} are the router, version {' and '.join(versions)}: {names}"
    )
    if len(versions) > 1:
        yield warning("processes", "their versions differ", "restart those of the earlier version")
    if late := [item.name for item in found if item.expires_at <= now]:
        yield warning(
            "processes",
            f"the leases of some have ended: {', '.join(late)}",
            "others take their work over; see 'Leases and fencing' in docs/scale.md",
        )
    for item in alive:
        if abs(item.skew) > MAX_SKEW * 1000:
            yield problem(
                "clock",
                f"that of process {item.name} differs by {item.skew / 1000:.0f} s from"
                " PostgreSQL's",
                "have a time service set both",
            )


def check_import(subject: Subject) -> Findings:
    if UnfinishedImport(subject.directory).exists:
        yield problem(
            "store",
            "an import was interrupted, and the router does not start",
            f"run `{subject.command('import FILE')}` again; nothing will be there twice",
        )
