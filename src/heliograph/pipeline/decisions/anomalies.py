"""Abuse and anomalies: what departs from its own past, minute by minute.

The newest complete minute of each router is compared with the median of the minutes before it, in
units of their median absolute deviation. So a busy token, a chatty messaging router and a slow
provider are measured by what is usual for them. A floor keeps quiet ones from being noticed for
little, and is more than an ordinary busy user reaches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Row, functions as f, types as t

from heliograph.actions.contract import EVERYTHING, ActionKind
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    RepairDecision,
    allowed_kinds,
)
from heliograph.pipeline.decisions.windows import WINDOW, RouterWindows, complete_windows
from heliograph.pipeline.jobs import rates
from heliograph.pipeline.spark.local import local

if TYPE_CHECKING:
    from heliograph.pipeline.runner import Pipeline

__all__ = ["RULES", "AnomalyRule", "decide", "find"]

MIN_HISTORY = 10
"""Complete windows that a baseline needs."""
NORMAL = 1.4826
"""Standard deviations of a normal distribution in a median absolute deviation."""
LEAST_UNVERIFIED = 0.8
"""Share of a wave of registrations that is not verified, from which all are paused."""


@dataclass(frozen=True, slots=True)
class AnomalyRule:
    """What is an anomaly of a metric.

    `floor` is the least value, `scale` what is added to the deviation that is usual, `least` the
    deviation, and `samples` the least number of answers from which a share or a mean is computed.
    """

    finding: str
    metric: str
    kind: ActionKind
    floor: float
    scale: float
    version: str
    least: float = 6.0
    samples: int = 0
    is_silence: bool = False
    """The value is 0, and the baseline at least `floor`."""

    @property
    def is_ratio(self) -> bool:
        return self.samples > 0


SECOND = 1_000_000
RULES = (
    AnomalyRule("token_flood", rates.TOKEN, ActionKind.THROTTLE_TOKEN, 300, 30, "flood/1"),
    AnomalyRule(
        "subscription_flood",
        rates.SUBSCRIPTION,
        ActionKind.THROTTLE_SUBSCRIPTION,
        300,
        30,
        "flood/1",
    ),
    AnomalyRule("server_flood", rates.SERVER, ActionKind.THROTTLE_SERVER, 6000, 600, "flood/1"),
    AnomalyRule(
        "silent_server",
        rates.SERVER,
        ActionKind.REPORT,
        20,
        1,
        "departure/1",
        least=4.0,
        is_silence=True,
    ),
    AnomalyRule(
        "slow_server",
        rates.SERVER_DELAY,
        ActionKind.REPORT,
        SECOND,
        SECOND / 10,
        "departure/1",
        samples=1,
    ),
    AnomalyRule(
        "failing_provider",
        rates.PROVIDER,
        ActionKind.ALERT,
        0.2,
        0.02,
        "departure/1",
        samples=20,
    ),
    AnomalyRule(
        "slow_provider",
        rates.PROVIDER_DELAY,
        ActionKind.ALERT,
        2 * SECOND,
        SECOND / 5,
        "departure/1",
        samples=20,
    ),
    AnomalyRule(
        "verification_failures",
        rates.VERIFICATION,
        ActionKind.ALERT,
        0.5,
        0.05,
        "registrations/1",
        samples=20,
    ),
    AnomalyRule(
        "registration_wave", rates.REGISTERED, ActionKind.ALERT, 300, 30, "registrations/1"
    ),
    AnomalyRule(
        "source_wave", rates.SOURCE, ActionKind.PAUSE_REGISTRATIONS, 120, 12, "registrations/1"
    ),
)
_LARGE = (rates.TOKEN, rates.SUBSCRIPTION, rates.SOURCE)
"""Metrics with very many subjects: only those above the floor are compared with their past."""


def decide(pipeline: "Pipeline", settings: DecisionSettings, now: float) -> Decisions:
    """Compare the newest minute of each router with its past. Time is that of the events."""
    offsets = pipeline.offsets
    windows = complete_windows(offsets.routers, offsets.seen, offsets.edges, pipeline.gaps())
    result = Decisions()
    for item in windows:
        if not item.is_known:
            result.stopped.append(f"{item.router}: events of the last minute are missing")
        elif len(item.complete) <= MIN_HISTORY:
            result.stopped.append(
                f"{item.router}: {len(item.complete) - 1} minutes are known, of {MIN_HISTORY}"
                " that a baseline needs"
            )
    ready = [item for item in windows if item.is_known and len(item.complete) > MIN_HISTORY]
    if not ready:
        return result
    table = pipeline.rates()
    rows = find(table, ready).collect()
    if rows:
        populations = _populations(table, rows)
        for item in ready:
            mine = [row for row in rows if row["router"] == item.router]
            _decide_router(item, mine, populations, settings, result)
            if any(row["finding"] == "registration_wave" for row in mine):
                _pause_all(table, item, result)
    return result


def find(table: DataFrame, windows: Sequence[RouterWindows]) -> DataFrame:
    """Return a row for each anomaly in the newest windows, with the numbers that explain it.

    The windows are complete; so a subject without a row in one of them did nothing then.
    """
    spark = table.sparkSession
    ends = local(spark, [(item.router, item.end) for item in windows], _ENDS)
    complete = [(item.router, number) for item in windows for number in item.complete]
    known = local(spark, complete, _KNOWN)
    numbers = local(spark, [(w.router, len(w.complete) - 1) for w in windows], _NUMBERS)
    oldest = min(item.end - (item.complete[-1] + 1) * WINDOW for item in windows)
    number = f.floor((f.col("end") - f.col("bucket") - 1) / WINDOW).cast("int")
    recent = (
        table.where(f.col("bucket") >= oldest)
        .join(f.broadcast(ends), "router", "inner")
        .where(f.col("bucket") < f.col("end"))
        .withColumn("number", number)
    )
    newest = min(item.end for item in windows) - WINDOW
    busy = (
        recent.where((f.col("bucket") >= newest) & (f.col("number") == 0))
        .where(f.col("metric").isin(*_LARGE))
        .groupBy("router", "metric", "subject")
        .agg(f.sum("count").alias("count"))
        .where(f.col("count") >= _least_count())
        .select("router", "metric", "subject")
    )
    large = f.col("metric").isin(*_LARGE)
    chosen = recent.where(~large).unionByName(
        recent.where(large).join(f.broadcast(busy), ["router", "metric", "subject"], "left_semi")
    )
    windowed = (
        chosen.join(f.broadcast(known), ["router", "number"], "inner")
        .groupBy("router", "metric", "subject", "number")
        .agg(
            f.sum("count").alias("count"),
            f.sum("total").alias("total"),
            f.max("parent").alias("parent"),
        )
    )
    return _compare(windowed.join(f.broadcast(numbers), "router", "inner"))


def _least_count() -> Column:
    floors = {rule.metric: rule.floor for rule in RULES if rule.metric in _LARGE}
    return _by("metric", floors)


def _compare(windowed: DataFrame) -> DataFrame:
    """Compare the newest window of each subject with the others, by every rule of its metric."""
    rules = f.explode(
        f.array(
            *(
                f.struct(
                    f.lit(rule.metric).alias("of"),
                    f.lit(rule.finding).alias("finding"),
                    f.lit(float(rule.floor)).alias("floor"),
                    f.lit(float(rule.scale)).alias("scale"),
                    f.lit(float(rule.least)).alias("least"),
                    f.lit(rule.samples).alias("samples"),
                    f.lit(rule.is_silence).alias("is_silence"),
                )
                for rule in RULES
            )
        )
    )
    is_new = f.col("number") == 0
    is_ratio = f.col("samples") > 0
    value = f.when(
        is_ratio,
        f.when(f.col("count") >= f.col("samples"), f.col("total") / f.col("count")),
    ).otherwise(f.col("count").cast("double"))
    measured = (
        windowed.withColumn("rule", rules)
        .select("*", "rule.*")
        .where(f.col("metric") == f.col("of"))
        .withColumn("value", value)
        .groupBy(
            *("router", "metric", "subject", "windows", "finding"),
            *("floor", "scale", "least", "samples", "is_silence"),
        )
        .agg(
            f.max(f.when(is_new, f.col("value"))).alias("observed"),
            f.max(f.when(is_new, f.col("count"))).alias("number"),
            f.collect_list(f.when(~is_new, f.col("value"))).alias("past"),
            f.max("parent").alias("parent"),
        )
    )
    # A window without a count is one with 0; one without a share says nothing.
    zeros = f.greatest(f.col("windows") - f.size("past"), f.lit(0))
    padded = f.concat("past", f.array_repeat(f.lit(0.0), zeros))
    whole = measured.withColumn("past", f.when(is_ratio, f.col("past")).otherwise(padded))
    whole = whole.where(f.size("past") >= MIN_HISTORY)
    observed = f.when(is_ratio, f.col("observed")).otherwise(f.coalesce("observed", f.lit(0.0)))
    compared = (
        whole.withColumn("observed", observed)
        .withColumn("baseline", _median(f.col("past")))
        .withColumn("spread", _median(f.transform("past", lambda x: f.abs(x - f.col("baseline")))))
    )
    distance = f.when(f.col("is_silence"), f.col("baseline") - f.col("observed")).otherwise(
        f.col("observed") - f.col("baseline")
    )
    usual = NORMAL * f.col("spread") + f.col("scale")
    is_silent = (f.col("observed") == 0) & (f.col("baseline") >= f.col("floor"))
    is_loud = f.col("observed") >= f.col("floor")
    return (
        compared.withColumn("deviation", distance / usual)
        .where(f.when(f.col("is_silence"), is_silent).otherwise(is_loud))
        .where(f.col("deviation") >= f.col("least"))
        .select(
            *("router", "finding", "subject", "parent", "number"),
            *("observed", "baseline", "spread", "deviation"),
        )
    )


def _median(values: Column) -> Column:
    return f.element_at(f.sort_array(values), f.floor(f.size(values) / 2).cast("int") + 1)


def _by(column: str, values: dict[str, float]) -> Column:
    chosen = f.lit(None).cast("double")
    for name, value in values.items():
        chosen = f.when(f.col(column) == name, f.lit(float(value))).otherwise(chosen)
    return chosen


_TEXT, _LONG, _INT = t.StringType(), t.LongType(), t.IntegerType()
_ENDS = t.StructType([t.StructField("router", _TEXT), t.StructField("end", _LONG)])
_KNOWN = t.StructType([t.StructField("router", _TEXT), t.StructField("number", _INT)])
_NUMBERS = t.StructType([t.StructField("router", _TEXT), t.StructField("windows", _INT)])


def _populations(table: DataFrame, rows: Iterable[Row]) -> dict[tuple[str, str], int]:
    """Return how many subjects a router has of each metric that something was found of."""
    metrics = {rule.metric for rule in RULES if rule.finding in {row["finding"] for row in rows}}
    found = (
        table.where(f.col("metric").isin(*metrics))
        .groupBy("router", "metric")
        .agg(f.approx_count_distinct("subject").alias("subjects"))
    )
    return {(row["router"], row["metric"]): row["subjects"] for row in found.collect()}


_BY_FINDING = {rule.finding: rule for rule in RULES}


def _decide_router(
    windows: RouterWindows,
    rows: Sequence[Row],
    populations: dict[tuple[str, str], int],
    settings: DecisionSettings,
    result: Decisions,
) -> None:
    """Decide on the anomalies of one router, unless there are too many of a kind."""
    chosen = _without_explained(rows)
    for rule in RULES:
        found = [row for row in chosen if row["finding"] == rule.finding]
        if not found:
            continue
        population = populations.get((windows.router, rule.metric), 0)
        result.found.append(f"{windows.router}: {rule.finding} {len(found)} of {population}")
        counts = {rule.kind: len(found)}
        if allowed_kinds(windows.router, counts, population, settings, result):
            result.decisions += [_decision(windows, rule, row) for row in found]


def _pause_all(table: DataFrame, windows: RouterWindows, result: Decisions) -> None:
    """Pause all registrations instead of an alert if hardly any of a wave are verified."""
    [row] = (
        table.where((f.col("router") == windows.router) & (f.col("metric") == rates.VERIFIED))
        .where(f.col("bucket").between(windows.end - WINDOW, windows.end - 1))
        .agg(f.coalesce(f.sum("count"), f.lit(0)).alias("verified"))
        .collect()
    )
    for index, item in enumerate(result.decisions):
        is_wave = item.evidence["finding"] == "registration_wave"
        if is_wave and item.router == windows.router:
            observed = float(item.evidence["observed"])
            if row["verified"] <= observed * (1 - LEAST_UNVERIFIED):
                evidence = {**item.evidence, "verified": row["verified"]}
                result.decisions[index] = replace(
                    item, kind=ActionKind.PAUSE_REGISTRATIONS, evidence=evidence
                )


def _without_explained(rows: Sequence[Row]) -> list[Row]:
    """Keep one finding of each flood: the narrowest that explains it.

    A flood of one subscription is not one of its token, and one of few tokens is not one of their
    messaging router, unless as much is left without them. Several of a token are the token's.
    """
    floods: dict[str, list[Row]] = {rule.finding: [] for rule in RULES}
    for row in rows:
        floods[row["finding"]].append(row)
    by_token: dict[str, list[float]] = {}
    for row in floods["subscription_flood"]:
        by_token.setdefault(row["parent"], []).append(row["observed"])

    def is_of_token(row: Row) -> bool:
        found = by_token.get(row["subject"], [])
        return len(found) != 1 or _is_left("token_flood", row, sum(found))

    tokens = [row for row in floods["token_flood"] if is_of_token(row)]
    names = {row["subject"] for row in tokens}
    subscriptions = [row for row in floods["subscription_flood"] if row["parent"] not in names]
    known = sum(row["observed"] for row in (*tokens, *subscriptions))
    servers = [row for row in floods["server_flood"] if _is_left("server_flood", row, known)]
    kept = {"token_flood": tokens, "subscription_flood": subscriptions, "server_flood": servers}
    return [row for found in (floods | kept).values() for row in found]


def _is_left(finding: str, row: Row, explained: float) -> bool:
    return bool(row["observed"] - explained >= _BY_FINDING[finding].floor)


def _decision(windows: RouterWindows, rule: AnomalyRule, row: Row) -> RepairDecision:
    evidence: dict[str, str | int | float] = {
        "finding": rule.finding,
        "observed": round(row["observed"], 3),
        "baseline": round(row["baseline"], 3),
        "spread": round(row["spread"], 3),
        "deviation": round(row["deviation"], 1),
        "from": windows.end - WINDOW,
        "until": windows.end,
        "windows": len(windows.complete) - 1,
    }
    subject = row["subject"]
    if rule.kind is ActionKind.ALERT:
        if subject:
            evidence["provider"] = subject
        subject = EVERYTHING
    return RepairDecision(windows.router, rule.kind, subject, evidence, rule.version, VALID_FOR)


VALID_FOR = 3600.0
"""Seconds that a throttle, a pause or an alert lasts, unless it is decided on again."""
