"""The daily line of the messaging router: the reference's columns, in its order."""

from pathlib import Path

import pytest

from heliograph.journal.journal import NO_JOURNAL
from heliograph.smp.counters import RelayOutcome, ServiceEvent
from heliograph.smp.metrics import SmpTotals
from heliograph.smp.observer import SmpObserver
from heliograph.smp.reference.statslog import SmpStatsLog
from heliograph.smp.store.records import ServiceRecord
from heliograph.wire import smp
from heliograph.wire.handshakes import ServiceRole
from tests.runtime.reference.test_periods import at, ids
from tests.smp.support import OK, World, create, create_notified, keys

COLUMNS = (
    *("fromTime", "qCreated", "qSecured", "qDeletedAll", "msgSent", "msgRecv"),
    *("day", "week", "month", "msgSentNtf", "msgRecvNtf", "dayNtf", "weekNtf", "monthNtf"),
    *("qCount", "msgCount", "msgExpired", "qDeletedNew", "qDeletedSecured"),
    *(
        f"{relay}{outcome}"
        for relay in ("pRelays", "pRelaysOwn", "pMsgFwds", "pMsgFwdsOwn")
        for outcome in ("Requests", "Successes", "Connect", "Compat", "Other")
    ),
    *("pMsgFwdsRecv", "qSub", "qSubAuth", "qSubDuplicate", "qSubProhibited", "msgSentAuth"),
    *("msgSentQuota", "msgSentLarge", "msgNtfs", "msgNtfNoSub", "msgNtfLost", "qSubNoMsg"),
    *("msgRecvGet", "msgGet", "msgGetNoMsg", "msgGetAuth", "msgGetDuplicate"),
    *("msgGetProhibited", "subDay", "subWeek", "subMonth", "queueCount", "ntfCreated"),
    *("ntfDeleted", "ntfSub", "ntfSubAuth", "ntfSubDuplicate", "notifierCount", "qDeletedAllB"),
    *("qSubAllB", "qSubEnd", "qSubEndB", "ntfDeletedB", "ntfSubB", "msgNtfsB", "msgNtfExpired"),
    *("ntfCount", "rcvServices", "ntfServices", "rcvServiceQueues", "ntfServiceQueues"),
    *(
        f"{kind}{event}"
        for kind in ("rcvSrv", "ntfSrv")
        for event in ("New", "Dup", "Upd", "Rem", "Sub", "SubDup", "SubQueues", "SubEnd")
    ),
)
"""The reference's names, from its `logServerStats`."""

MONDAY = at("2026-06-01 00:00")  # the first of a month


def new_log(directory: Path, observer: SmpObserver, totals: SmpTotals | None = None) -> SmpStatsLog:
    services = {
        b"1": ServiceRecord(b"1", ServiceRole.NOTIFIER, b"", 7),
        b"2": ServiceRecord(b"2", ServiceRole.MESSAGING, b"", 3),
        b"3": ServiceRecord(b"3", ServiceRole.NOTIFIER, b"", 4),
    }
    found = totals or SmpTotals()
    return SmpStatsLog(observer, services, lambda: found, directory / "stats.json")


def columns(log: SmpStatsLog, now: float = MONDAY) -> dict[str, str]:
    return dict(zip(COLUMNS, log.line(now).split(","), strict=True))


@pytest.fixture
def observer() -> SmpObserver:
    return SmpObserver(NO_JOURNAL)


def test_no_column_is_missing(tmp_path: Path, observer: SmpObserver) -> None:
    found = columns(new_log(tmp_path, observer))
    assert len(found) == 96
    assert set(found.values()) - {found["fromTime"]} == {"0", "1", "2", "3", "11"}


def test_numbers_of_the_store(tmp_path: Path, observer: SmpObserver) -> None:
    found = columns(new_log(tmp_path, observer, SmpTotals(1, 2, 3, 4)))
    assert (found["qCount"], found["queueCount"], found["notifierCount"]) == ("1", "1", "2")
    assert (found["msgCount"], found["ntfCount"]) == ("3", "4")
    assert (found["rcvServices"], found["ntfServices"]) == ("1", "2")
    assert (found["rcvServiceQueues"], found["ntfServiceQueues"]) == ("3", "11")


def test_relays_and_services(tmp_path: Path, observer: SmpObserver) -> None:
    observer.relay_requested(RelayOutcome.SUCCESS, own=True)
    observer.relay_requested(RelayOutcome.CONNECT, own=False)
    observer.command_relayed(RelayOutcome.COMPAT, own=True)
    observer.service_changed(ServiceRole.NOTIFIER, ServiceEvent.REASSOCIATED)
    observer.service_changed(ServiceRole.MESSAGING, ServiceEvent.QUEUES, 5)
    found = columns(new_log(tmp_path, observer))
    changed = {name: value for name, value in found.items() if value not in ("0", "")}
    del changed["fromTime"]
    for name in ("rcvServices", "ntfServices", "rcvServiceQueues", "ntfServiceQueues"):
        del changed[name]
    assert changed == {
        "pRelaysRequests": "2",
        "pRelaysSuccesses": "1",
        "pRelaysConnect": "1",
        "pRelaysOwnRequests": "1",
        "pRelaysOwnSuccesses": "1",
        "pMsgFwdsRequests": "1",
        "pMsgFwdsCompat": "1",
        "pMsgFwdsOwnRequests": "1",
        "pMsgFwdsOwnCompat": "1",
        "ntfSrvUpd": "1",
        "rcvSrvSubQueues": "5",
    }


def test_active_queues(tmp_path: Path, observer: SmpObserver) -> None:
    log = new_log(tmp_path, observer)
    for number, queue in enumerate(sorted(ids(1, 2, 3))):
        observer.message_sent(queue, notified=number == 0)
        observer.message_received(queue, notified=number == 0, by_get=True)
    log.refresh(MONDAY - 3600)
    found = columns(log)
    assert [found[name] for name in ("day", "week", "month")] == ["3"] * 3
    assert [found[name] for name in ("dayNtf", "weekNtf", "monthNtf")] == ["1"] * 3
    assert (found["msgRecv"], found["msgRecvGet"], found["msgRecvNtf"]) == ("3", "3", "1")


def test_a_restart_continues_the_day(tmp_path: Path, observer: SmpObserver) -> None:
    log = new_log(tmp_path, observer)
    observer.message_sent(b"q" * 24, notified=True)
    log.begin(MONDAY - 86_400)
    observer.message_sent(b"r" * 24, notified=True)
    log.refresh(MONDAY - 3600)
    log.save()
    again = SmpObserver(NO_JOURNAL)
    restored = new_log(tmp_path, again)
    restored.restore()
    again.message_sent(b"s" * 24, notified=False)
    found = columns(restored)
    assert (found["fromTime"], found["msgSent"], found["msgSentNtf"]) == ("2026-05-31", "2", "1")
    assert found["day"] == "2"
    assert b"r" * 24 not in (tmp_path / "stats.json").read_bytes()


async def test_of_a_running_router(small_world: World, tmp_path: Path) -> None:
    router = small_world.router
    log = SmpStatsLog(router.observer, router.services, SmpTotals, tmp_path / "stats.json")
    alice, ntf = await small_world.connect(), await small_world.connect()
    queue, other = await create_notified(alice), await create(alice)
    await queue.secure(alice)
    assert await queue.send(alice, b"hello") == OK
    assert await queue.sub(alice) == smp.SOK()
    await alice.push(queue.rcv_id)
    assert await queue.sub(alice) == smp.SOK()
    message = await alice.push(queue.rcv_id)
    assert await queue.ack(alice, message) == OK
    stranger = await small_world.connect()
    assert await stranger.ask(smp.SUB(), queue.rcv_id, keys().private) != smp.SOK()
    assert await queue.nsub(ntf) == smp.SOK()
    assert await ntf.ask_many([queue.nsubscribing()] * 2) == [smp.SOK()] * 2  # only this is a batch
    assert await other.delete(alice) == OK
    assert await queue.delete(alice) == OK
    found = columns(log)
    expected = {
        "qCreated": "2",
        "qSecured": "1",
        "qDeletedAll": "2",
        "qDeletedNew": "1",
        "qDeletedSecured": "1",
        "qDeletedAllB": "0",
        "msgSent": "1",
        "msgSentNtf": "1",
        "msgRecv": "1",
        "msgRecvNtf": "1",
        "qSub": "1",
        "qSubDuplicate": "1",
        "qSubAuth": "1",
        "qSubAllB": "0",
        "ntfCreated": "1",
        "ntfSub": "1",
        "ntfSubDuplicate": "2",
        "ntfSubB": "1",
    }
    assert {name: found[name] for name in expected} == expected
