from typing import Any

import pytest

from heliograph.actions.wakes import MAX_RATE, digest_of
from heliograph.cli.fleet.command import _COLUMNS
from heliograph.pipeline.decisions.deciding import DecisionSettings
from heliograph.pipeline.fleet.planning import plan_wake
from heliograph.pipeline.fleet.selecting import describe_columns, select_tokens
from heliograph.pipeline.jobs import tokens as token_job
from heliograph.runtime.errors import StartError
from tests.pipeline.support import Scribe, frame

DAY = 86_400.0


def a_town(router: str, number: int) -> Scribe:
    scribe = Scribe(router)
    for item in range(number):
        token = f"{item:031x}{router[-1]}"
        scribe("token_registered", item, token=token, provider="apns_prod")
        scribe.push("push_accepted", item * DAY, token, notifications=[], through=1)
        host = {"own_server": True, "smp_host": "a.example.org" if item % 2 else "b.example.org"}
        scribe("subscription_created", item, token=token, subscription=f"s{item}", **host)
    return scribe


def tokens_of(spark: Any, *scribes: Scribe) -> Any:
    return token_job.tokens(frame(spark, [event for item in scribes for event in item.events]))


def test_tokens_are_selected_by_what_is_known_of_them(spark: Any) -> None:
    town = a_town("r1", 10)
    town("token_deleted", 20 * DAY, token=f"{4:031x}1", through=1)
    tokens = tokens_of(spark, town)

    def number(where: str) -> int:
        selected, _ = select_tokens(tokens, where)
        return int(selected.count())

    assert number("true") == 9
    assert number("smp_host = 'a.example.org'") == 5
    assert number("smp_host like '%.example.org'") == 9
    assert number("smp_host = 'a.example.org' and last_accepted < timestamp '2026-01-10'") == 2
    assert number("provider = 'fcm'") == 0
    assert number("last_woken is null and router = 'r1'") == 9
    assert number("last_accepted < now() - interval 1 day") == 9


@pytest.mark.parametrize(
    "where", ["host = 1", "smp_host", "smp_host = ", "token = 'x'", "sum(1) > 2"]
)
def test_a_wrong_condition_names_the_columns(spark: Any, where: str) -> None:
    with pytest.raises(StartError, match="last_accepted  when the provider"):
        select_tokens(tokens_of(spark, a_town("r1", 1)), where)


def test_help_lists_the_columns() -> None:
    assert describe_columns() == _COLUMNS


def test_a_plan_shares_the_rate_and_binds_the_order(spark: Any) -> None:
    tokens = tokens_of(spark, a_town("r1", 30), a_town("r2", 10))
    plan = plan_wake(
        *select_tokens(tokens, "true"), "ab" * 16, "true", 8.0, DecisionSettings(100.0)
    )
    assert not plan.stopped
    assert [(s.router, s.tokens, s.population, s.rate) for s in plan.shares] == [
        ("r1", 30, 30, 6.0),
        ("r2", 10, 10, 2.0),
    ]
    assert plan.shares[0].seconds == 5.0
    assert plan.members is not None
    rows = plan.members.to_pylist()
    for share in plan.shares:
        own = sorted((r["position"], r["token"]) for r in rows if r["router"] == share.router)
        assert [position for position, _ in own] == list(range(share.tokens))
        assert digest_of(token for _, token in own) == share.digest
    [first, _] = plan.decisions()
    assert first.evidence["digest"] == plan.shares[0].digest
    assert first.subject == "ab" * 16


def test_more_than_meant_stops(spark: Any) -> None:
    tokens = tokens_of(spark, a_town("r1", 30))
    plan = plan_wake(*select_tokens(tokens, "true"), "ab" * 16, "true", 1e9, DecisionSettings(5.0))
    [reason] = plan.stopped
    assert reason.startswith("r1: 30 tokens are more than 10, which is 5% of 30")
    assert plan.shares[0].rate == MAX_RATE
