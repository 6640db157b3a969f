"""Plan a wake: which tokens, in which order, and how fast at each router."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window, functions as f

from heliograph.actions.contract import ActionKind
from heliograph.actions.wakes import MAX_RATE, MAX_TOKENS, digest_of
from heliograph.pipeline.decisions.deciding import DecisionSettings, RepairDecision
from heliograph.runtime.errors import StartError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RULE", "RouterShare", "WakePlan", "plan_wake"]

RULE = "wake/1"
MAX_WHERE = 2000
"""Characters of a condition: it is part of the evidence."""


@dataclass(frozen=True, slots=True)
class RouterShare:
    """What one router is to do; `rate` is in tokens a second."""

    router: str
    tokens: int
    population: int
    rate: float
    digest: str

    @property
    def seconds(self) -> float:
        return self.tokens / self.rate


@dataclass(slots=True)
class WakePlan:
    """A wake that is not written yet. `stopped` says why it must not be."""

    wake: str
    where: str
    shares: list[RouterShare] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    members: "pa.Table | None" = None

    def decisions(self) -> list[RepairDecision]:
        """Return one action for each router."""
        return [
            RepairDecision(
                share.router,
                ActionKind.WAKE_FLEET,
                self.wake,
                {
                    "tokens": share.tokens,
                    "of": share.population,
                    "rate": share.rate,
                    "digest": share.digest,
                    "where": self.where,
                },
                RULE,
            )
            for share in self.shares
        ]


def plan_wake(
    selected: DataFrame,
    everyone: DataFrame,
    wake: str,
    where: str,
    rate: float,
    settings: DecisionSettings,
) -> WakePlan:
    """Plan a wake of the selected tokens at a rate, which routers share by their numbers.

    The order is that of the hashes: it tells nothing, and spreads what happens to be alike.
    """
    if len(where) > MAX_WHERE:
        raise StartError(f"--where: must have at most {MAX_WHERE} characters")
    plan = WakePlan(wake, where)
    rows = selected.cache()
    try:
        numbers = {row["router"]: row["count"] for row in rows.groupBy("router").count().collect()}
        counted = everyone.distinct().groupBy("router").count().collect()
        populations = {row["router"]: row["count"] for row in counted}
        total = sum(numbers.values())
        for router, number in sorted(numbers.items()):
            cap = settings.cap(populations[router])
            if number > cap:
                plan.stopped.append(
                    f"{router}: {number} tokens are more than {cap}, which is"
                    f" {settings.max_percent:g}% of {populations[router]}:"
                    " raise --max-percent if that is what you want"
                )
        if total > MAX_TOKENS:
            plan.stopped.append(f"{total} tokens are more than {MAX_TOKENS}: wake them in parts")
        if total <= MAX_TOKENS:
            plan.members = _members(rows, wake)
    finally:
        rows.unpersist()
    for router, number in sorted(numbers.items()):
        share = min(max(rate * number / total, 1 / 60), MAX_RATE)
        tokens = [] if plan.members is None else _tokens_of(plan.members, router)
        plan.shares.append(
            RouterShare(router, number, populations[router], round(share, 3), digest_of(tokens))
        )
    return plan


def _members(rows: DataFrame, wake: str) -> "pa.Table":
    order = Window.partitionBy("router").orderBy("token")
    numbered = rows.select(
        f.lit(wake).alias("wake"),
        "router",
        (f.row_number().over(order) - 1).cast("long").alias("position"),
        "token",
    )
    return numbered.toArrow()


def _tokens_of(members: "pa.Table", router: str) -> list[str]:
    import pyarrow.compute as pc

    own = members.filter(pc.equal(members["router"], router)).sort_by("position")
    tokens: list[str] = own.column("token").to_pylist()
    return tokens
