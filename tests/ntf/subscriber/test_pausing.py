from heliograph.actions.contract import ActionKind
from heliograph.ntf.store.restrictions import Restriction, Restrictions
from heliograph.ntf.subscriber.pausing import ReadingPauses, Throttle
from tests.waiting import until

NOW = 1_700_000_000.0


def test_reading_is_paused_while_there_is_any_reason() -> None:
    pauses = ReadingPauses(lambda: None)
    pauses.set("store", True)
    pauses.set("events", True)
    pauses.set("store", False)
    assert pauses.reasons == {"events"}
    pauses.set("events", False)
    assert pauses.reasons == set()


async def test_the_last_pause_for_a_reason_counts() -> None:
    pauses = ReadingPauses(lambda: None)
    pauses.pause_for("budget", 60.0)
    pauses.pause_for("budget", 0.01)
    assert pauses.reasons == {"budget"}
    await until(lambda: not pauses.reasons)


async def test_only_the_throttled_router_is_read_more_slowly() -> None:
    restrictions = Restrictions()
    until_ms = int(NOW * 1000) + 60_000
    restrictions.replace([Restriction(ActionKind.THROTTLE_SERVER, b"1", until_ms, rate=50)])
    throttled, other = ReadingPauses(lambda: None), ReadingPauses(lambda: None)
    one, two = Throttle(restrictions, 1, throttled), Throttle(restrictions, 2, other)
    for throttle in (one, two):
        throttle.spend(500, NOW)
    assert not throttled.reasons  # ten seconds of its rate may come at once
    for throttle in (one, two):
        throttle.spend(1, NOW)
    assert (throttled.reasons, other.reasons) == ({"throttle"}, set())
    await until(lambda: not throttled.reasons)
    one.spend(10_000, NOW + 61)
    assert not throttled.reasons  # it is over
