from typing import Any

from heliograph.pipeline.decisions.foreign import LEAST_NOTIFICATIONS, short, silent
from tests.pipeline.support import Scribe, frame

DAY = 86_400.0
FOREIGN: dict[str, Any] = {"own_server": False}


def nmsg(scribe: Scribe, number: int, at: float, sub: str, **columns: Any) -> None:
    values = {"token": "t", "ntf_seq": number, "provider": "apns_prod", **FOREIGN, **columns}
    name = f"{sub}-{number}"
    scribe("nmsg_received", at, notification=name, own_server=values["own_server"])
    scribe("nmsg_stored", at, notification=name, subscription=sub, **values)


def planted() -> Scribe:
    scribe = Scribe()
    for number in range(LEAST_NOTIFICATIONS):
        nmsg(scribe, number, number * 3600.0, "hourly, then silent")
        nmsg(scribe, number, number * 3600.0, "own", own_server=True)
        nmsg(scribe, number, number * 3600.0, "deleted")
    for number in range(LEAST_NOTIFICATIONS - 1):
        nmsg(scribe, number, number * 3600.0, "too few to know")
        nmsg(scribe, number, number * DAY / 4, "alive")
    for number in range(LEAST_NOTIFICATIONS):
        nmsg(scribe, number, number * 60.0 if number else -3 * DAY, "with a long pause before")
    deleted = {"token": "t", "subscription": "deleted", "through": 1}
    scribe("subscription_deleted", 2 * DAY, **deleted)
    scribe("router_stopped", 5 * DAY)
    return scribe


def test_a_subscription_is_silent_compared_with_its_own_past(spark: Any) -> None:
    found = silent(frame(spark, planted().events)).collect()
    assert [row["subscription"] for row in found] == ["hourly, then silent"]
    assert found[0]["population"] == 4


def test_a_router_that_confirms_less_than_requested_is_reported(spark: Any) -> None:
    scribe = Scribe()
    for server, counts in {"a": [(5, 5), (3, 5)], "b": [(3, 5), (5, 5)]}.items():
        for count, expected in counts:
            numbers = {"count": count, "expected_count": expected}
            scribe("smp_subscribed", float(count), server=server, **FOREIGN, **numbers)
    found = short(frame(spark, scribe.events)).collect()
    assert [(row["server"], row["confirmed"], row["expected"]) for row in found] == [("a", 3, 5)]
