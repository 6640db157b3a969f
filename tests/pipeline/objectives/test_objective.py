import pytest
from hypothesis import given, strategies as st

from heliograph.pipeline.objectives.objective import (
    DEFAULTS,
    LIMITS,
    Objective,
    parse_objective,
    parse_objectives,
)

objectives = st.builds(
    Objective, st.integers(1, 999_999), st.one_of(st.none(), st.sampled_from(LIMITS))
)


@given(objectives)
def test_text_is_parsed_again(objective: Objective) -> None:
    assert parse_objective(objective.text) == objective


def test_examples() -> None:
    assert parse_objective("99% accepted in 10s") == Objective(990_000, 10)
    assert parse_objective(" 99.95 % accepted in 30 s ") == Objective(999_500, 30)
    assert [item.text for item in DEFAULTS] == ["99% accepted in 10s", "99.9% accepted"]
    assert Objective(990_000).allowed == 10_000
    assert parse_objectives(["99% accepted", "99.0% accepted"]) == (Objective(990_000),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be as"),
        ("100% accepted", "must be as"),
        ("0% accepted", "more than 0%"),
        ("99 accepted", "must be as"),
        ("99% shown", "must be as"),
        ("99.00001% accepted", "must be as"),
        ("99% accepted in 11s", "one of 1, 2, 5, 10"),
        ("99% accepted in 0s", "one of 1, 2, 5, 10"),
    ],
)
def test_others_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_objective(text)
