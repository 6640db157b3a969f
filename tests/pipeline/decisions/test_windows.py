from typing import Any

from heliograph.journal.heads import Head
from heliograph.pipeline.decisions.windows import HISTORY, MAX_LAG, WINDOW, complete_windows
from heliograph.pipeline.jobs.rates import BUCKET
from heliograph.pipeline.jobs.reach import Heads
from heliograph.pipeline.jobs.windows import Gap

END = 1_000 * WINDOW
MINUTES = 30


def boot(first: int, last: int, **facts: int) -> tuple[int, dict[str, int]]:
    return first, {"last_at": last, **facts}


def windows(
    *boots: tuple[int, dict[str, int]], gaps: Any = (), part: str = "ntf", heads: Any = ()
) -> Any:
    notes = {"r": {"part": part, "boots": {str(n): facts for n, (_, facts) in enumerate(boots)}}}
    seen = {f"r/{number}": [(1, 9)] for number in range(len(boots))}
    edges = {f"r/{n}": {"1": (first, first + 5)} for n, (first, _) in enumerate(boots)}
    runs = {head.run: head for head in heads}
    return complete_windows(notes, seen, edges, gaps, Heads(runs))


def gap(begin: int, until: int) -> Gap:
    return Gap("r", "ntf", 1, 5, 6, begin, until)


def test_a_router_that_ran_all_the_time() -> None:
    [found] = windows(boot(END - MINUTES * WINDOW, END + BUCKET - 1))
    assert (found.end, found.complete) == (END, tuple(range(MINUTES)))
    [found] = windows(boot(0, END))
    assert found.complete == tuple(range(HISTORY + 1))


def test_windows_with_gaps_restarts_and_kills_are_left_out() -> None:
    begin = END - MINUTES * WINDOW
    [found] = windows(boot(begin, END), gaps=[gap(END - 10, END - 5)])
    assert not found.is_known
    [found] = windows(boot(begin, END), gaps=[gap(END - 3 * WINDOW + 1, END - 3 * WINDOW + 1)])
    assert {*range(MINUTES)} - {*found.complete} == {2}
    stop, start = END - 5 * WINDOW - 10, END - 5 * WINDOW + 10
    first, second = boot(begin, stop, stopped_at=stop), boot(start, END)
    [found] = windows(first, second)
    assert {*range(MINUTES)} - {*found.complete} == {4, 5}
    second = boot(start, END, recovered_at=start, recovered_through=0)
    [found] = windows(boot(begin, stop), second)
    assert {*range(MINUTES)} - {*found.complete} == {4, 5}


def test_the_slowest_process_of_a_router_counts_while_it_lives() -> None:
    begin, slow = END - MINUTES * WINDOW, END - 2 * BUCKET
    [found] = windows(boot(begin, END), boot(begin, slow))
    assert found.end == slow
    [found] = windows(boot(begin, END), boot(begin, slow, stopped_at=slow))
    assert found.end == END


def test_windows_that_may_lack_events_of_a_process_are_incomplete() -> None:
    begin, behind = END - MINUTES * WINDOW, END - MAX_LAG - 1
    slow = boot(begin, behind)
    [found] = windows(boot(begin, END), slow)
    assert (found.end, found.is_known) == (END, False)
    assert found.complete == tuple(range(MAX_LAG // WINDOW + 1, MINUTES))
    over: dict[str, int]
    for over in ({"stopped_at": behind}, {"retired": 1}):
        [found] = windows(boot(begin, END), (begin, {**slow[1], **over}))
        assert (found.end, found.complete) == (END, tuple(range(MINUTES)))


def test_an_idle_process_is_known_until_its_head() -> None:
    begin, idle = END - MINUTES * WINDOW, boot(END - MINUTES * WINDOW, END - 10 * WINDOW)

    def head(seq: int, at: int, *, ended: bool = False) -> Head:
        return Head("r", 1, "ntf", 1, seq, at, ended=ended)

    [found] = windows(boot(begin, END), idle, heads=[head(9, END - BUCKET)])
    assert (found.end, found.is_known) == (END - BUCKET, True)
    assert found.runs[1][1] == END - BUCKET
    # An event that has not arrived: nobody knows what it did meanwhile.
    [found] = windows(boot(begin, END), idle, heads=[head(10, END - BUCKET)])
    assert (found.end, found.is_known) == (END, False)
    # It was killed, and another process has found that.
    [found] = windows(boot(begin, END), idle, heads=[head(9, END - 10 * WINDOW, ended=True)])
    assert (found.end, found.complete) == (END, tuple(range(MINUTES)))


def test_a_process_that_has_begun_is_waited_for_before_its_first_event() -> None:
    began = END - 2 * MAX_LAG
    new = Head("r", began, "ntf", 1, 5, END)
    [found] = windows(boot(END - MINUTES * WINDOW, END), heads=[new])
    assert not found.is_known


def test_only_notification_routers_that_run() -> None:
    assert windows(boot(0, END), part="smp") == []
    assert windows(boot(0, END, stopped_at=END)) == []
