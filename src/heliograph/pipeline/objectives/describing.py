"""Objectives as text and as rows of a table, from an account that was stored. Needs no Spark."""

import time
from collections.abc import Iterator

from heliograph.documents import JsonMapping
from heliograph.pipeline.objectives.budget import ALERTS

__all__ = ["COLUMNS", "EVERYWHERE", "describe", "provider_of", "summary", "table_rows"]

EVERYWHERE = "all"
"""Stands for all providers together."""
COLUMNS = ("objective", "provider", "state", "percent", "budget left", *(a.long for a in ALERTS))
_WIDTHS = (22, 12, 16, 9, 12, 7, 7, 7)


def provider_of(result: JsonMapping) -> str:
    return str(result["provider"] or EVERYWHERE)


def table_rows(objectives: JsonMapping) -> list[tuple[str, ...]]:
    """Return a row of text for each objective and provider: see `COLUMNS`; the last are rates."""
    return [
        (
            result["objective"],
            provider_of(result),
            str(result["state"]),
            _percent(result["percent"], 3),
            _percent(_hundredfold(result["budget_left"]), 1),
            *(_rate(result["burn"][alert.long]) for alert in ALERTS),
        )
        for result in objectives.get("results", ())
    ]


def describe(objectives: JsonMapping) -> Iterator[str]:
    """Yield a table as lines of text, what keeps it from being complete, and firing alerts."""
    rows = table_rows(objectives)
    if not rows:
        yield "no objective was measured yet: run `heliograph pipeline once`"
        return
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(objectives["until"]))
    yield f"the 30 days until {at} UTC; the last three columns are burn rates"
    for row in (COLUMNS, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, _WIDTHS, strict=True))
        yield " ".join(cells).rstrip()
    incomplete = objectives["incomplete"]
    for reason in dict.fromkeys(incomplete.values()):
        windows = ", ".join(name for name, text in incomplete.items() if text == reason)
        yield f"not complete: {windows}: {reason}"
    for result in objectives["results"]:
        for name in result["alerts"]:
            yield f"alert: {summary(result, name)}"


def summary(result: JsonMapping, name: str) -> str:
    """Return what a firing alert says."""
    alert = next(alert for alert in ALERTS if alert.name == name)
    rate = result["burn"][alert.long]
    return (
        f"{result['objective']} ({provider_of(result)}): the error budget is used {rate:.1f} times"
        f" as fast as allowed, over {alert.long} and still over {alert.short}."
    )


def _hundredfold(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _percent(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}%"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
