import pytest

from heliograph.pipeline.jobs.completeness import first_at, incomplete_windows
from heliograph.pipeline.jobs.routers import RouterFacts, until_at
from heliograph.pipeline.jobs.windows import Gap
from heliograph.pipeline.objectives.budget import WINDOWS

HOUR = 3_600_000_000
DAY = 24 * HOUR
UNTIL = 100 * DAY


def router(name: str = "a", last_at: int = UNTIL, part: str = "ntf", **state: bool) -> RouterFacts:
    stopped, retired = state.get("stopped", False), state.get("retired", False)
    return RouterFacts(name, part, last_at, None, None, (), stopped, retired)


def gap(until_at: int, part: str = "ntf") -> Gap:
    return Gap("a", part, 1, 6, 25, until_at - HOUR, until_at)


def found(*routers: RouterFacts, gaps: tuple[Gap, ...] = (), began: int = 0) -> set[str]:
    return {*incomplete_windows(routers or (router(),), gaps, 0, began)}


def test_complete() -> None:
    assert found() == set()
    assert found(router(), router("b", UNTIL - HOUR, "smp")) == set()
    assert found(router(), router("b", 0, stopped=True)) == set()
    assert found(router(), router("phone", 0, "device")) == set()
    assert found(gaps=(gap(UNTIL - 31 * DAY), gap(UNTIL, "device"))) == set()


@pytest.mark.parametrize(
    ("ago", "windows"),
    [
        (31 * DAY, set()),
        (30 * DAY, {"30d"}),
        (2 * DAY, {"3d", "30d"}),
        (2 * HOUR, {"6h", "3d", "30d"}),
        (0, {*WINDOWS}),
    ],
)
def test_a_gap_spoils_the_windows_it_is_in(ago: int, windows: set[str]) -> None:
    assert found(gaps=(gap(UNTIL - ago),)) == windows
    # So does the end of a router that was killed and never came back.
    killed = router("b", UNTIL - ago, retired=True)
    assert found(router(), killed) == windows


def test_silence_quarantine_and_short_history() -> None:
    assert found(router(), router("b", UNTIL - HOUR - 1)) == {*WINDOWS}
    reasons = incomplete_windows([router()], [], 3, 0)
    assert reasons == dict.fromkeys(WINDOWS, "3 records are in quarantine")
    assert found(began=UNTIL - 4 * DAY) == {"30d"}
    assert incomplete_windows([router()], [], 0, UNTIL - 4 * DAY) == {
        "30d": "events are known of 4 days only"
    }
    assert "2.0 hours" in incomplete_windows([router()], [], 0, UNTIL - 2 * HOUR)["3d"]


def test_times() -> None:
    assert until_at([router(last_at=5), router("phone", 9, "device")]) == 5
    assert until_at([]) == first_at({}) == 0
    notes = {
        "a": {"part": "ntf", "boots": {"70": {}, "50": {}}},
        "phone": {"part": "device", "boots": {"10": {}}},
    }
    assert first_at(notes) == 50
