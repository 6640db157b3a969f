"""Abuse and anomalies: what departs from its own past, window by window of 40 seconds.

The newest complete window of each router is compared with the median of those before it, in units
of their median absolute deviation. So a busy token, a chatty messaging router and a slow provider
are measured by what is usual for them. A floor keeps quiet ones from being noticed for little, and
is more than an ordinary busy user reaches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, starmap
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window, functions as f, types as t

from heliograph.actions.contract import EVERYTHING, ActionKind
from heliograph.pipeline.decisions.baselines import (
    MIN_HISTORY,
    Anomaly,
    Baselines,
    SubjectSums,
    compare,
)
from heliograph.pipeline.decisions.deciding import (
    Decisions,
    DecisionSettings,
    RepairDecision,
    allowed_kinds,
)
from heliograph.pipeline.decisions.rules import LARGE_METRICS, RULES, AnomalyRule
from heliograph.pipeline.decisions.windows import WINDOW, RouterWindows, complete_windows
from heliograph.pipeline.jobs import coverage, rates
from heliograph.pipeline.spark.local import local

if TYPE_CHECKING:
    from heliograph.pipeline.runner import Pipeline

__all__ = ["decide", "find"]

LEAST_UNVERIFIED = 0.8
"""Share of a wave of registrations that is not verified, from which all are paused."""
MAX_BUSY = 10_000
"""Subjects of a router and a large metric that are examined at a time."""
VALID_FOR = 3600.0
"""Seconds that a throttle, a pause or an alert lasts, unless it is decided on again."""
Subject = tuple[str, str, str]
"""A router, a metric and a subject."""


def decide(
    pipeline: "Pipeline",
    settings: DecisionSettings,
    now: float,
    baselines: Baselines | None = None,
) -> Decisions:
    """Compare the newest window of each router with its past. Time is that of the events.

    With the `baselines` of the last time, only what is new is read.
    """
    offsets = pipeline.offsets
    heads = pipeline.read_heads(offsets, now)
    gaps = coverage.gaps(offsets.seen, offsets.edges, offsets.routers, heads)
    windows = complete_windows(offsets.routers, offsets.seen, offsets.edges, gaps, heads)
    result = Decisions()
    for item in windows:
        if not item.is_known:
            result.stopped.append(f"{item.router}: not all events of the newest window are known")
        elif len(item.complete) <= MIN_HISTORY:
            result.stopped.append(
                f"{item.router}: {len(item.complete) - 1} windows are known, of {MIN_HISTORY}"
                " that a baseline needs"
            )
    ready = [item for item in windows if item.is_known and len(item.complete) > MIN_HISTORY]
    if not ready:
        return result
    table, known = pipeline.rates(), baselines or Baselines()
    found = find(table, ready, known, result)
    if found:
        populations = _populations(table, found)
        for item in ready:
            mine = [anomaly for anomaly in found if anomaly.router == item.router]
            _decide_router(item, mine, populations, settings, result)
            if any(anomaly.finding == "registration_wave" for anomaly in mine):
                _pause_all(known.newest(item, rates.VERIFIED, ""), item, result)
    return result


def find(
    table: DataFrame, windows: Sequence[RouterWindows], baselines: Baselines, result: Decisions
) -> list[Anomaly]:
    """Return the anomalies in the newest windows, with the numbers that explain them.

    The windows are complete; so a subject without a row in one of them did nothing then.
    """
    since = {item.router: baselines.unknown_since(item) for item in windows}
    crowds: dict[tuple[str, str], list[Subject]] = {}
    new: dict[str, list[SubjectSums]] = {item.router: [] for item in windows}
    for batch in _new_sums(table, windows, since).toArrow().to_batches():
        router, metric, subject, _, sums = batch.columns
        at, counts, totals = (array.to_numpy() for array in sums.values.flatten())
        ends = sums.offsets.to_numpy()
        columns = (column.to_pylist() for column in (router, metric, subject))
        for name, kind, who, part in zip(*columns, starmap(slice, pairwise(ends)), strict=True):
            if kind in LARGE_METRICS:
                crowds.setdefault((name, kind), []).append((name, kind, who))
            else:
                found_sums = SubjectSums(kind, who, at[part], counts[part], totals[part])
                new[name].append(found_sums)
    found: list[Anomaly] = []
    for item in windows:
        baselines.add(item, new[item.router])
        found += baselines.anomalies(item)
    busy: list[Subject] = []
    for (name, kind), subjects in crowds.items():
        if len(subjects) > MAX_BUSY:
            result.stopped.append(
                f"{name}: more than {MAX_BUSY} subjects of the metric {kind} are busy: none of them"
                " was examined"
            )
        else:
            busy += subjects
    return found + _floods(table, windows, busy) if busy else found


def _new_sums(
    table: DataFrame, windows: Sequence[RouterWindows], since: Mapping[str, int]
) -> DataFrame:
    """Return sums by bucket since a time of each router; of large metrics, the busy subjects.

    One scan: this is what every comparison costs. There is a row for each subject, and of a large
    metric for one more than `MAX_BUSY` at most.
    """
    is_large = f.col("metric").isin(*LARGE_METRICS)
    newest = {item.router: item.end - WINDOW for item in windows}
    ends = _by_router({item.router: item.end for item in windows})
    first = f.when(is_large, _by_router(newest)).otherwise(_by_router(since))
    least = min(*since.values(), *newest.values())
    floors = {rule.metric: int(rule.floor) for rule in RULES if rule.metric in LARGE_METRICS}
    recent = table.where(f.col("bucket") >= least)
    if least == min(newest.values()):
        recent = recent.coalesce(1)  # a window needs no exchange between tasks
    keys = "router", "metric", "subject"
    at = f.coalesce(f.when(~is_large, f.col("bucket")), f.lit(0)).alias("at")
    by_subject = (
        recent.where((f.col("bucket") >= first) & (f.col("bucket") < ends))
        .groupBy(*keys, at)
        .agg(f.sum("count").alias("count"), f.sum("total").alias("total"))
        .where(~is_large | (f.col("count") >= _literals(floors)[f.col("metric")]))
        .groupBy(*keys)
        .agg(
            f.sum("count").alias("number"),
            f.collect_list(f.struct("at", "count", "total")).alias("sums"),
        )
    )
    order = Window.partitionBy("router", "metric").orderBy(f.desc("number"), "subject")
    return (
        by_subject.withColumn("place", f.row_number().over(order))
        .where(~is_large | (f.col("place") <= MAX_BUSY + 1))
        .select(*keys, "number", "sums")
    )


def _floods(
    table: DataFrame, windows: Sequence[RouterWindows], busy: Sequence[Subject]
) -> list[Anomaly]:
    """Compare busy subjects of large metrics with their past."""
    by_router = {item.router: item for item in windows}
    chosen = local(table.sparkSession, busy, _SUBJECTS)
    oldest = min(item.end - (item.complete[-1] + 1) * WINDOW for item in windows)
    end = _by_router({item.router: item.end for item in windows})
    number = f.floor((end - f.col("bucket") - 1) / WINDOW).cast("int")
    rows = (
        table.where((f.col("bucket") >= oldest) & (f.col("bucket") < end))
        .join(f.broadcast(chosen), ["router", "metric", "subject"], "left_semi")
        .groupBy("router", "metric", "subject", number.alias("number"))
        .agg(f.sum("count").alias("count"), f.max("parent").alias("parent"))
    ).collect()
    counts: dict[Subject, dict[int, int]] = {}
    parents: dict[Subject, str] = {}
    for row in rows:
        key = row["router"], row["metric"], row["subject"]
        counts.setdefault(key, {})[row["number"]] = row["count"]
        if row["parent"] is not None:
            parents[key] = row["parent"]
    found = []
    for key, by_number in counts.items():
        router, metric, subject = key
        values = [by_number.get(number, 0) for number in by_router[router].complete]
        for rule in RULES:
            if rule.metric == metric:
                parent = parents.get(key)
                found.append(compare(rule, router, subject, values, values, parent))
    return [anomaly for anomaly in found if anomaly is not None]


def _by_router(values: Mapping[str, int]) -> Column:
    return _literals(values)[f.col("router")]


def _literals(values: Mapping[str, int]) -> Column:
    pairs = ((f.lit(key), f.lit(value).cast("long")) for key, value in values.items())
    return f.create_map(*chain.from_iterable(pairs))


_TEXT = t.StringType()
_SUBJECTS = t.StructType([t.StructField(name, _TEXT) for name in ("router", "metric", "subject")])


def _populations(table: DataFrame, found: Iterable[Anomaly]) -> dict[tuple[str, str], int]:
    """Return how many subjects a router has of each metric that something was found of."""
    metrics = {rule.metric for rule in RULES if rule.finding in {row.finding for row in found}}
    subjects = (
        table.where(f.col("metric").isin(*metrics))
        .groupBy("router", "metric")
        .agg(f.approx_count_distinct("subject").alias("subjects"))
    )
    return {(row.router, row.metric): row.subjects for row in subjects.collect()}


_BY_FINDING = {rule.finding: rule for rule in RULES}


def _decide_router(
    windows: RouterWindows,
    rows: Sequence[Anomaly],
    populations: dict[tuple[str, str], int],
    settings: DecisionSettings,
    result: Decisions,
) -> None:
    """Decide on the anomalies of one router, unless there are too many of a kind."""
    chosen = _without_explained(rows)
    for rule in RULES:
        found = [row for row in chosen if row.finding == rule.finding]
        if not found:
            continue
        population = populations.get((windows.router, rule.metric), 0)
        result.found.append(f"{windows.router}: {rule.finding} {len(found)} of {population}")
        counts = {rule.kind: len(found)}
        if allowed_kinds(windows.router, counts, population, settings, result):
            result.decisions += [_decision(windows, rule, row) for row in found]


def _pause_all(verified: int, windows: RouterWindows, result: Decisions) -> None:
    """Pause all registrations instead of an alert if hardly any of a wave are verified."""
    for index, item in enumerate(result.decisions):
        is_wave = item.evidence["finding"] == "registration_wave"
        if is_wave and item.router == windows.router:
            observed = float(item.evidence["observed"])
            if verified <= observed * (1 - LEAST_UNVERIFIED):
                evidence = {**item.evidence, "verified": verified}
                result.decisions[index] = replace(
                    item, kind=ActionKind.PAUSE_REGISTRATIONS, evidence=evidence
                )


def _without_explained(rows: Sequence[Anomaly]) -> list[Anomaly]:
    """Keep one finding of each flood: the narrowest that explains it.

    A flood of one subscription is not one of its token, and one of few tokens is not one of their
    messaging router, unless as much is left without them. Several of a token are the token's.
    """
    floods: dict[str, list[Anomaly]] = {rule.finding: [] for rule in RULES}
    for row in rows:
        floods[row.finding].append(row)
    by_token: dict[str | None, list[float]] = {}
    for row in floods["subscription_flood"]:
        by_token.setdefault(row.parent, []).append(row.observed)

    def is_of_token(row: Anomaly) -> bool:
        found = by_token.get(row.subject, [])
        return len(found) != 1 or _is_left("token_flood", row, sum(found))

    tokens = [row for row in floods["token_flood"] if is_of_token(row)]
    names = {row.subject for row in tokens}
    subscriptions = [row for row in floods["subscription_flood"] if row.parent not in names]
    known = sum(row.observed for row in (*tokens, *subscriptions))
    servers = [row for row in floods["server_flood"] if _is_left("server_flood", row, known)]
    kept = {"token_flood": tokens, "subscription_flood": subscriptions, "server_flood": servers}
    return [row for found in (floods | kept).values() for row in found]


def _is_left(finding: str, row: Anomaly, explained: float) -> bool:
    return bool(row.observed - explained >= _BY_FINDING[finding].floor)


def _decision(windows: RouterWindows, rule: AnomalyRule, row: Anomaly) -> RepairDecision:
    evidence: dict[str, str | int | float] = {
        "finding": rule.finding,
        "observed": round(row.observed, 3),
        "baseline": round(row.baseline, 3),
        "spread": round(row.spread, 3),
        "deviation": round(row.deviation, 1),
        "from": windows.end - WINDOW,
        "until": windows.end,
        "windows": len(windows.complete) - 1,
    }
    subject = row.subject
    if rule.kind is ActionKind.ALERT:
        if subject:
            evidence["provider"] = subject
        subject = EVERYTHING
    return RepairDecision(windows.router, rule.kind, subject, evidence, rule.version, VALID_FOR)
