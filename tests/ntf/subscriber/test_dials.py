"""Admission of dials: bounds in all and per host, and who comes first."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from heliograph.ntf.subscriber.dials import DialLimits, Dials, Slot
from heliograph.transport.errors import ConnectFailed
from tests.waiting import until

LIMITS = DialLimits(
    proven=2, unproven=2, per_host=2, host_interval=0.0, connections=100, connections_per_host=100
)


class Dial:
    """A dial that lasts until it is ended."""

    def __init__(
        self, dials: Dials, host: str, *, is_proven: bool = False, failures: int = 0
    ) -> None:
        self.slot: Slot | None = None
        self._end = asyncio.Event()
        self._dials = dials
        self.task = asyncio.create_task(self._run(host, is_proven, failures))

    async def _run(self, host: str, is_proven: bool, failures: int) -> None:
        async with self._dials.slot(host, is_proven=is_proven, failures=failures) as slot:
            self.slot = slot
            await self._end.wait()

    @property
    def is_admitted(self) -> bool:
        return self.slot is not None

    async def end(self) -> None:
        self._end.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def admitted(*dials: Dial) -> list[bool]:
    await settle()
    return [dial.is_admitted for dial in dials]


async def end_all(*dials: Dial) -> None:
    ending: list[Awaitable[None]] = [dial.end() for dial in dials]
    await asyncio.gather(*ending)


async def test_concurrent_dials_are_bounded_and_the_next_follows() -> None:
    dials = Dials(LIMITS)
    first, second, third = (Dial(dials, host) for host in "abc")
    assert await admitted(first, second, third) == [True, True, False]
    assert (dials.in_flight, dials.waiting) == (2, 1)
    await first.end()
    assert await admitted(third) == [True]
    await end_all(second, third)
    assert (dials.in_flight, dials.waiting) == (0, 0)


async def test_a_connection_occupies_no_dial() -> None:
    dials = Dials(LIMITS)
    connected = [Dial(dials, "a") for _ in range(5)]
    for _ in range(5):
        await settle()
        for dial in connected:
            if dial.slot is not None:
                dial.slot.connected()
    assert all(await admitted(*connected))
    await end_all(*connected)


async def test_proven_routers_do_not_wait_for_others() -> None:
    dials = Dials(LIMITS)
    others = [Dial(dials, str(number)) for number in range(50)]
    await settle()
    proven = Dial(dials, "honest", is_proven=True)
    assert await admitted(proven) == [True]
    await proven.end()
    for dial in others:
        dial.task.cancel()


async def test_a_proven_router_does_not_wait_for_others_of_its_host() -> None:
    dials = Dials(DialLimits(per_host=2, host_interval=60.0, connections_per_host=2))
    others = [Dial(dials, "shared") for _ in range(10)]
    await settle()
    proven = Dial(dials, "shared", is_proven=True)
    assert await admitted(proven) == [True]
    await proven.end()
    for dial in others:
        dial.task.cancel()


async def test_those_that_failed_least_come_first() -> None:
    dials = Dials(LIMITS)
    busy = [Dial(dials, host) for host in "ab"]
    await settle()
    failing = [Dial(dials, f"silent{number}", failures=3) for number in range(20)]
    await settle()
    new = Dial(dials, "new")
    await settle()
    await busy[0].end()
    assert await admitted(new) == [True]
    assert not any(await admitted(*failing))
    for dial in (*failing, busy[1], new):
        dial.task.cancel()


async def test_of_those_that_were_never_dialed_the_newest_comes_first() -> None:
    """Otherwise a new router would wait for a time-out of each silent one that was named before."""
    dials = Dials(replace(LIMITS, unproven=1))
    silent = [Dial(dials, f"silent{number}") for number in range(5)]
    await settle()
    honest = Dial(dials, "honest")
    await settle()
    await silent[0].end()
    assert await admitted(*silent, honest) == [True, False, False, False, False, True]
    await honest.end()
    assert await admitted(*silent) == [True, False, False, False, True]
    await end_all(*reversed(silent[1:]))


async def test_one_host_is_bounded_across_identities() -> None:
    dials = Dials(DialLimits(unproven=50, per_host=2, host_interval=0.0, connections=100))
    victim = [Dial(dials, "victim") for _ in range(10)]
    other = Dial(dials, "other")
    assert sum(await admitted(*victim)) == 2
    assert await admitted(other) == [True]
    await end_all(other, *victim)


async def test_the_host_that_most_addresses_name_counts() -> None:
    dials = Dials(LIMITS)
    with dials.named(["decoy", "victim"]), dials.named(["other", "victim"]):
        assert dials.busiest(["decoy", "victim"]) == "victim"
        assert dials.busiest(["victim", "other"]) == "victim"
    assert dials.busiest(["decoy", "victim"]) == "decoy"


async def test_one_ip_address_is_dialed_at_a_bounded_rate() -> None:
    dials = Dials(DialLimits(host_interval=0.1))
    dials.pace("192.0.2.1")
    dials.pace("192.0.2.2")
    with pytest.raises(ConnectFailed):
        dials.pace("192.0.2.1")
    await asyncio.sleep(0.1)
    dials.pace("192.0.2.1")


async def test_one_host_is_dialed_at_a_bounded_rate() -> None:
    dials = Dials(DialLimits(host_interval=0.1))
    loop = asyncio.get_running_loop()
    began, times = loop.time(), []

    async def dial() -> None:
        async with dials.slot("victim", is_proven=False, failures=0):
            times.append(loop.time() - began)

    await asyncio.gather(*(dial() for _ in range(5)))
    assert times[-1] >= 0.35


async def test_connections_are_bounded_in_all_and_per_host() -> None:
    limits = DialLimits(
        unproven=50, per_host=50, host_interval=0.0, connections=5, connections_per_host=3
    )
    dials = Dials(limits)
    same = [Dial(dials, "same") for _ in range(6)]
    await settle()
    for dial in same[:3]:
        assert dial.slot is not None
        dial.slot.connected()
    others = [Dial(dials, str(number)) for number in range(4)]
    assert sum(await admitted(*same)) == 3
    assert sum(await admitted(*others)) == 2
    await end_all(*same, *others)


async def test_a_router_that_reconnects_keeps_its_place() -> None:
    dials = Dials(replace(LIMITS, connections=2))
    other = Dial(dials, "other")
    with dials.named(["proven"]) as place:
        async with dials.slot("proven", is_proven=False, failures=0, place=place) as slot:
            slot.connected()
            assert await admitted(other) == [True]
            waiting = Dial(dials, "new")
            slot.keeps_place = True
        assert await admitted(waiting) == [False]
        async with dials.slot("proven", is_proven=True, failures=1, place=place):
            assert await admitted(waiting) == [False]
        assert await admitted(waiting) == [True]
        dials.keep(place, is_kept=True)
    await end_all(other, waiting)
    [third, fourth] = Dial(dials, "third"), Dial(dials, "fourth")
    assert await admitted(third, fourth) == [True, True]  # the place ended with its router
    await end_all(third, fourth)


async def test_connections_to_one_ip_address_are_bounded() -> None:
    dials = Dials(replace(LIMITS, connections_per_host=1))
    async with dials.slot("name", is_proven=False, failures=0) as slot:
        slot.connected("192.0.2.1")
        with pytest.raises(ConnectFailed):
            dials.pace("192.0.2.1")
        dials.pace("192.0.2.2")
    dials.pace("192.0.2.1")
    dials = Dials(replace(LIMITS, connections_per_host=2))
    async with dials.slot("192.0.2.1", is_proven=False, failures=0) as slot:
        slot.connected("192.0.2.1")
        dials.pace("192.0.2.1")  # one connection is counted once


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_cancelled_dial_leaves_its_place(is_waiting: bool) -> None:
    dials = Dials(LIMITS)
    busy = [Dial(dials, host) for host in "ab"]
    await settle()
    waiting = [Dial(dials, host) for host in "cd"]
    await settle()
    (waiting if is_waiting else busy)[0].task.cancel()
    await settle()
    await busy[1].end()
    await until(lambda: waiting[1].is_admitted)
    for dial in (*busy, *waiting):
        dial.task.cancel()
    await asyncio.gather(*(dial.task for dial in (*busy, *waiting)), return_exceptions=True)
    assert (dials.in_flight, dials.waiting) == (0, 0)


async def test_several_processes_share_the_limits() -> None:
    limits = DialLimits(9, 6, 3, 0.5, 30, 1)
    assert limits.shared_by(1) == limits
    assert limits.shared_by(3) == DialLimits(3, 2, 1, 1.5, 10, 1)
    assert DialLimits().shared_by(3).connections is None  # descriptors are of each process


async def test_limits_that_change_while_dials_wait() -> None:
    dials = Dials(LIMITS.shared_by(2))
    first, last, newest = (Dial(dials, host) for host in "abc")
    assert await admitted(first, newest, last) == [True, False, False]
    dials.limit(LIMITS)
    assert await admitted(first, newest, last) == [True, True, False]
    dials.limit(LIMITS.shared_by(2))
    await first.end()
    assert await admitted(newest, last) == [True, False]  # what was admitted stays
    await newest.end()
    assert await admitted(last) == [True]
    await last.end()
