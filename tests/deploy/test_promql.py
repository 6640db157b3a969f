import pytest

from tests.deploy.promql import used


def test_what_an_expression_uses() -> None:
    text = 'sum by (le) (rate(a_bucket{job=~"h.*",x="1"}[5m])) / on (job) b:c > 0.5 and -d < time()'
    found = used(text)
    assert found.metrics == {"a_bucket", "b:c", "d"}
    assert found.labels == {"le", "job"}
    assert found.matchers == {"job": {"h.*"}, "x": {"1"}}


@pytest.mark.parametrize(
    "text", ["", "sum(a", "a)", "a b", "a{x}", "a{x=1}", "a{x='1'}", "rate(a[5 m])", "a > ", "a;"]
)
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        used(text)
