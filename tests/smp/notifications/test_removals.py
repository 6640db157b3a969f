from contextlib import AbstractContextManager

from hypothesis import given, strategies as st

from heliograph.smp.notifications.removals import Removals


def test_not_to_be_read_again_until_removed() -> None:
    removals = Removals()
    removals.begin([1, 2])
    assert 1 in removals
    removals.removed([1, 2])
    assert len(removals) == 0


def test_to_be_read_again_if_the_removal_failed() -> None:
    removals = Removals()
    removals.begin([1, 2])
    removals.failed([1, 2])
    assert len(removals) == 0


def test_remembered_by_reads_that_had_begun() -> None:
    removals = Removals()
    removals.begin([1])
    with removals.reading():
        removals.removed([1])
        assert 1 in removals
        with removals.reading():
            pass
        assert 1 in removals
    assert len(removals) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40))
def test_against_a_model(steps: list[tuple[bool, int]]) -> None:
    """Each removal is remembered while a read runs that began before it, and none without reads."""
    removals, running, seq = Removals(), list[tuple[AbstractContextManager[None], set[int]]](), 0
    for is_read, which in steps:
        if is_read:
            reading = removals.reading()
            reading.__enter__()
            running.append((reading, set()))
        elif which < len(running):
            running.pop(which)[0].__exit__(None, None, None)
        else:
            seq += 1
            removals.begin([seq])
            removals.removed([seq])
            for _, seen in running:
                seen.add(seq)
        assert {number for number in range(seq + 1) if number in removals} >= set().union(
            *(seen for _, seen in running)
        )
        if not running:
            assert len(removals) == 0
