import pytest
from hypothesis import given, strategies as st

from heliograph.runtime.backoff import Backoff

PLAIN = Backoff(first=1.0, last=10.0, jitter=0.0)


@pytest.mark.parametrize(
    ("attempts", "delay"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (100_000, 10)]
)
def test_it_doubles_up_to_the_last(attempts: int, delay: float) -> None:
    assert PLAIN.delay(attempts, 0.5) == delay


@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True), st.floats(0, 1))
def test_jitter_takes_at_most_its_share(attempts: int, random: float, jitter: float) -> None:
    whole = Backoff(1.0, 300.0, 0.0).delay(attempts, 0)
    delay = Backoff(1.0, 300.0, jitter).delay(attempts, random)
    assert whole * (1 - jitter) <= delay <= whole


@given(st.integers(1, 20), st.floats(0, 1, exclude_max=True), st.floats(0, 86_400))
def test_never_before_the_provider_asked_for(attempts: int, random: float, asked: float) -> None:
    assert Backoff().delay(attempts, random, asked) >= asked
    assert Backoff().delay(attempts, random, asked) >= Backoff().delay(attempts, random)


def test_nothing_asked_is_nothing_added() -> None:
    assert PLAIN.delay(1, 0, 0.0) == PLAIN.delay(1, 0, None) == 1
