"""Whole stores as the reference's logs, in both directions and over both kinds of store."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.db.database import migrate
from heliograph.db.dialects import Dialect, open_dialect
from heliograph.runtime.reference import storelog
from heliograph.runtime.reference.storelog import StoreLogError
from heliograph.smp.reference.transfer import SmpExport, SmpImport
from heliograph.smp.store import store
from heliograph.smp.store.schema import MIGRATIONS
from heliograph.wire import smp
from heliograph.wire.smp.fields import QueueMode
from heliograph.wire.smp.ids import ids_hash
from tests.smp.reference.test_storelog import (
    CREATE,
    LID,
    LINK_TEXT,
    META,
    NID,
    NOTIFIER_TEXT,
    OTHER,
    SERVICE,
    SERVICE_LINE,
    SID,
    K,
    R,
    b64,
)
from tests.smp.support import AUTH, OK, Queue, World, a_world, create, create_notified, service
from tests.waiting import until

NOW = 1_800_000_000.0
LOGS = ("log", "messages", "notifications")
TABLES = ("queues", "links", "messages", "services")
OTHER_RID, OTHER_SID = b"q" * 24, b"p" * 24
OTHER_CREATE = CREATE.replace(R, b64(OTHER_RID)).replace(b64(SID), b64(OTHER_SID))
SEVERAL_KEYS = f"{CREATE.replace(f'rk={K}', f'rk={K},{b64(OTHER)}')}{K}"
MESSAGE = f"v3 {R} {b64(b'm1')} 1767225600 flags=T {b64(b'hello')}"


@pytest.fixture
def dialect(url: str) -> Iterator[Dialect]:
    migrate(url, MIGRATIONS)
    opened = open_dialect(url)
    yield opened
    opened.close()


def imported(dialect: Dialect, file: Path, *lines: str, dry_run: bool = False) -> SmpImport:
    file.write_text("".join(f"{line}\n" for line in lines))
    work = SmpImport(dialect)
    work.check(file)
    work.apply([file], dry_run=dry_run)
    return work


def everything(dialect: Dialect) -> list[list[tuple[object, ...]]]:
    return [sorted(dialect.query(f"SELECT * FROM {table}", ()), key=repr) for table in TABLES]


HISTORY = (
    SERVICE_LINE,
    CREATE,
    f"SECURE {R} {K}",
    f"LINK {R} {b64(LID)} {b64(b'fixed data')} {b64(b'user data')}",
    f"NOTIFIER {R} {b64(NID)} {b64(OTHER)} {b64(b'd' * 32)}",
    f"QUEUE_SERVICE {R} N {b64(SERVICE)}",
    f"KEYS {R} {K},{b64(OTHER)}",
    f"SUSPEND {R}",
    f"BLOCK {R} reason=spam",
    f"TIME {R} 1767225600",
    OTHER_CREATE,
    f"DELETE {b64(OTHER_RID)}",
    "",
)


def test_a_log_is_replayed(dialect: Dialect, tmp_path: Path) -> None:
    work = imported(dialect, tmp_path / "log", *HISTORY, MESSAGE)
    assert (work.applied, work.skipped) == (len(HISTORY), {})
    assert work.stored == {"queues": 1, "services": 1, "messages": 1, "notifications": 0}
    export = SmpExport(dialect, 1_767_225_600.0)
    export.write(tmp_path / "out", tmp_path / "messages")
    assert (export.queues, export.services, export.messages) == (1, 1, 1)
    chain = f"cert={b64(b'c')},{b64(b'd')} "
    assert (tmp_path / "out").read_text().splitlines() == [
        SERVICE_LINE.replace(chain, "cert= "),
        f"{SEVERAL_KEYS}{LINK_TEXT}{NOTIFIER_TEXT} nsrv={b64(SERVICE)} status=blocked,reason=spam",
    ]
    assert (tmp_path / "messages").read_text().splitlines() == [MESSAGE]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
    [row] = dialect.query("SELECT queue_count, ids_hash FROM services", ())
    assert row == (1, ids_hash([NID]))


def test_what_is_undone_later(dialect: Dialect, tmp_path: Path) -> None:
    imported(
        dialect,
        tmp_path / "log",
        *HISTORY,
        f"UNBLOCK {R}",
        f"QUEUE_SERVICE {R} N ",
        f"NDELETE {R}",
        f"LDELETE {R}",
    )
    SmpExport(dialect, NOW).write(tmp_path / "out")
    assert (tmp_path / "out").read_text().splitlines()[1:] == [SEVERAL_KEYS]
    assert dialect.query("SELECT queue_count FROM services", ()) == [(0,)]


def test_importing_again_changes_nothing(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the first import was interrupted after some transactions."""
    monkeypatch.setattr(storelog, "LINES_PER_PAGE", 3)
    lines = (*HISTORY, MESSAGE, MESSAGE.replace(b64(b"m1"), b64(b"m2")))
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines))

    def interrupt(what: str, count: int) -> None:
        if count >= 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SmpImport(dialect, interrupt).apply([tmp_path / "log"])
    assert everything(dialect) != [[], [], [], []]
    SmpImport(dialect).apply([tmp_path / "log"])
    first = everything(dialect)
    again = imported(dialect, tmp_path / "log", *lines)
    assert everything(dialect) == first
    assert again.skipped == {"are of a message that is there already": 2}


def test_dry_run(dialect: Dialect, tmp_path: Path) -> None:
    work = imported(dialect, tmp_path / "log", *HISTORY, MESSAGE, dry_run=True)
    assert work.applied == len(HISTORY)
    assert work.stored == {"queues": 1, "services": 1, "messages": 1, "notifications": 0}
    assert everything(dialect) == [[], [], [], []]


def test_bad_lines_are_refused_by_number(dialect: Dialect, tmp_path: Path) -> None:
    with pytest.raises(StoreLogError, match="line 2: not a record") as error:
        imported(dialect, tmp_path / "log", CREATE, "nonsense", f"BLOCK {R} spam")
    assert len(error.value.problems) == 2
    assert everything(dialect) == [[], [], [], []]


@pytest.mark.parametrize("line", [CREATE, MESSAGE])
def test_a_file_that_was_cut_off(dialect: Dialect, tmp_path: Path, line: str) -> None:
    """Also where what is left of the last line could be read."""
    (tmp_path / "log").write_text(f"{CREATE}\n{line}")
    work = SmpImport(dialect)
    with pytest.raises(StoreLogError, match="line 2: it does not end with a line break"):
        work.check(tmp_path / "log")
    work.check(tmp_path / "log", skip_bad=True)
    work.apply([tmp_path / "log"])
    assert (work.applied, work.skipped) == (1, {"cannot be read": 1})


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([f"SUSPEND {R}"], "name a queue that is not there"),
        ([f"{CREATE}{K}", f"SECURE {R} {b64(OTHER)}"], "secure a queue that has another key"),
        (
            [f"{CREATE}{LINK_TEXT}", f"LINK {R} {b64(LID)} {b64(b'other')} {b64(b'user data')}"],
            "set another link than the queue has",
        ),
        (
            [f"{CREATE}{NOTIFIER_TEXT}", f"v1 {b64(NID)} {b64(b'm')} 1 {b64(b'n' * 24)} {META}"],
            "are of a notification that its notifier's secret does not open",
        ),
        ([MESSAGE], "name a queue that is not there"),
        ([f"{CREATE} rsrv={b64(SERVICE)}"], "name a service that is not there"),
        ([CREATE, f"QUEUE_SERVICE {R} R {b64(SERVICE)}"], "name a service that is not there"),
        ([CREATE, OTHER_CREATE.replace(b64(OTHER_SID), b64(SID))], "use an ID of another queue"),
        (
            [f"{CREATE}{NOTIFIER_TEXT}", f"{OTHER_CREATE}{NOTIFIER_TEXT}"],
            "use an ID of another queue",
        ),
        ([f"{CREATE}{LINK_TEXT}", f"{OTHER_CREATE}{LINK_TEXT}"], "use an ID of another queue"),
        (
            [SERVICE_LINE, SERVICE_LINE.replace(b64(SERVICE), b64(OTHER_SID))],
            "create a service of a certificate that has another",
        ),
    ],
)
def test_lines_that_do_not_fit(
    dialect: Dialect, tmp_path: Path, lines: list[str], reason: str
) -> None:
    work = imported(dialect, tmp_path / "log", *lines)
    assert work.skipped == {reason: 1}
    assert work.applied == len(lines) - 1


async def test_a_router_moves_out_and_in(url: str, tmp_path: Path) -> None:
    """Its clients find everything: keys, messages, links, notifiers, a full queue, services."""
    async with a_world(url) as world:
        alice = await world.connect()
        ntf = await world.connect(service=service())
        queue = await create_notified(alice)
        await queue.secure(alice)
        assert await queue.send(alice, b"one") == OK
        assert await queue.send(alice, b"two", notify=False) == OK
        assert await queue.nsub(ntf) == smp.SOK(ntf.service_id)
        await ntf.push(queue.notifier_id)
        await world.arrived()
        await ntf.close()
        await until(lambda: len(world.router.clients) == 1)
        assert await queue.send(alice, b"three") == OK
        contact = await create(alice, mode=QueueMode.CONTACT, subscribe=False)
        assert await contact.by_recipient(alice, smp.LSET(b"l" * 24, b"fixed", b"user")) == OK
        off = await create(alice, subscribe=False)
        assert await off.by_recipient(alice, smp.OFF()) == OK
    dialect = open_dialect(url)
    SmpExport(dialect, NOW).write(*(tmp_path / name for name in LOGS))
    dialect.close()

    other = f"sqlite:///{tmp_path}/other.db"
    migrate(other, MIGRATIONS)
    target = open_dialect(other)
    work = SmpImport(target)
    work.apply([tmp_path / name for name in LOGS])
    assert (work.applied, work.skipped, work.stored["notifications"]) == (8, {}, 1)
    again = SmpExport(target, NOW)
    again.write(*(tmp_path / f"{name}2" for name in LOGS))
    repeated = SmpImport(target)
    repeated.apply([tmp_path / "notifications"])
    assert repeated.skipped == {"are of a notification that is there already": 1}
    target.close()
    for name in LOGS:
        assert (tmp_path / name).read_bytes() == (tmp_path / f"{name}2").read_bytes()
    async with a_world(other) as moved:
        await check_moved(moved, queue, off)


async def check_moved(world: World, queue: Queue, off: Queue) -> None:
    alice, ntf = await world.connect(), await world.connect(service=service())
    assert await queue.receive_all(alice) == [b"one", b"two", b"three"]
    assert await ntf.nsubs(1, ids_hash([queue.notifier_id])) == smp.SOKS(
        1, ids_hash([queue.notifier_id])
    )
    assert queue.notifier is not None
    queue.notifier.decrypt(await ntf.push(queue.notifier_id))
    link = await alice.ask(smp.LGET(), b"l" * 24)
    assert (link.fixed_data, link.user_data) == (b"fixed", b"user")
    assert await off.send(alice, b"hello") == AUTH


async def test_imported_messages_expire_in_whatever_order_they_came(
    dialect: Dialect, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message log is sorted by queue, and not by time."""
    monkeypatch.setattr(store, "_EXPIRED_PAGE", 2)
    now = int(time.time())
    fresh = [f"v3 {R} {b64(b'm%d' % number)} {now} quota" for number in range(3)]
    old = [f"v3 {b64(OTHER_RID)} {b64(b'o%d' % number)} 1767225600 quota" for number in range(3)]
    imported(dialect, tmp_path / "log", CREATE, OTHER_CREATE, *fresh, *old)
    async with a_world(url) as world:
        await until(lambda: world.router.observer.counters.messages_expired == 3)
        assert (await world.router.store.counts())[2] == 3
