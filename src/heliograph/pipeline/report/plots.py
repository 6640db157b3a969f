"""Plots as SVG text: enough for a report, readable without scripts, fonts or network.

A series is coloured by the CSS class `s-NAME`, so that a meaning has one colour in all plots, in
light and in dark.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 260
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 24, 52
MOST_LABELS = 9
MOST_WIDTH = 48.0
"""Of a bar, if there are few."""
EMPTY_PLOT = "<p>Nothing.</p>"

TICKS = (
    1e-6,
    1e-5,
    1e-4,
    1e-3,
    0.01,
    0.1,
    1.0,
    10.0,
    60.0,
    600.0,
    3600.0,
    36e3,
    864e2,
    864e3,
    864e4,
)

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Axis:
    """The vertical axis: its title, where its ticks are, and how values are written."""

    title: str
    low: float
    high: float
    ticks: tuple[float, ...]
    text: Callable[[float], str]
    is_log: bool = False

    def y(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = (math.log10(max(item, self.low)) for item in (value, low, high))
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))


def linear(title: str, most: float) -> Axis:
    """Return an axis from zero to the next round number."""
    top = nice(most)
    return Axis(title, 0.0, top, (0.0, top / 2, top), lambda value: f"{value:,g}")


def logarithmic(title: str, values: Sequence[float]) -> Axis:
    """Return an axis of durations in seconds, with ticks that people know."""
    positive = [value for value in values if value > 0] or [0.001, 1.0]
    first = max(bisect_right(TICKS, min(positive)) - 1, 0)
    last = min(bisect_left(TICKS, max(positive)), len(TICKS) - 1)
    ticks = TICKS[min(first, last - 1) : last + 1] if last else TICKS[:2]
    return Axis(title, ticks[0], ticks[-1], ticks, duration, is_log=True)


def stacked(title: str, labels: Sequence[str], series: dict[str, Values], unit: str) -> str:
    """Draw a stacked bar for each label, with one colour per series."""
    shown = {name: values for name, values in series.items() if any(values)}
    totals = [sum(values[i] or 0 for values in shown.values()) for i in range(len(labels))]
    axis = linear(unit, max(totals, default=0))
    step = _step(labels)
    width = min(step * 0.9, MOST_WIDTH)
    parts = []
    below = [0.0] * len(labels)
    for name, values in shown.items():
        for index, value in enumerate(values):
            if not value:
                continue
            high = axis.y(below[index] + value)
            height = axis.y(below[index]) - high
            text = escape(f"{labels[index]} {name}: {value:,g}")
            parts.append(
                f'<rect class="s-{escape(name)}" x="{LEFT + (index + 0.5) * step - width / 2:.1f}"'
                f' y="{high:.1f}" width="{width:.2f}" height="{height:.2f}">'
                f"<title>{text}</title></rect>"
            )
            below[index] += value
    return _frame(title, labels, parts, axis) + _legend(shown) if shown else EMPTY_PLOT


def lines(title: str, labels: Sequence[str], series: dict[str, Values], unit: str) -> str:
    """Draw a line for each series, interrupted where a value is missing."""
    shown = {n: values for n, values in series.items() if any(v is not None for v in values)}
    known = [value for values in shown.values() for value in values if value is not None]
    return _lines(title, labels, shown, linear(unit, max(known, default=0)))


def durations(title: str, labels: Sequence[str], series: dict[str, Values]) -> str:
    """Draw a line for each series of seconds, on a logarithmic scale."""
    shown = {n: values for n, values in series.items() if any(v is not None for v in values)}
    known = [value for values in shown.values() for value in values if value is not None]
    return _lines(title, labels, shown, logarithmic("time, logarithmic", known))


def _lines(title: str, labels: Sequence[str], shown: dict[str, Values], axis: Axis) -> str:
    step = _step(labels)
    parts = []
    for name, values in shown.items():
        colour = f'class="s-{escape(name)}"'
        run: list[str] = []
        for index, value in enumerate([*values, None]):
            if value is not None:
                x, y = LEFT + (index + 0.5) * step, axis.y(value)
                text = escape(f"{labels[index]} {name}: {axis.text(value)}")
                run.append(f"{x:.1f},{y:.1f}")
                parts.append(
                    f'<circle {colour} cx="{x:.1f}" cy="{y:.1f}" r="2.5">'
                    f"<title>{text}</title></circle>"
                )
            else:
                if len(run) > 1:
                    parts.append(f'<polyline {colour} points="{" ".join(run)}"/>')
                run = []
    return _frame(title, labels, parts, axis) + _legend(shown) if shown else EMPTY_PLOT


def nice(value: float) -> float:
    """Return the next round number."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size < value:
        size *= 10
    while size / 10 >= value:
        size /= 10
    return next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1.0) if size * part >= value)


def duration(seconds: float) -> str:
    """Return a time in the unit that people would use."""
    for size, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _step(labels: Sequence[str]) -> float:
    return (WIDTH - LEFT - RIGHT) / max(len(labels), 1)


def _frame(title: str, labels: Sequence[str], parts: list[str], axis: Axis) -> str:
    drawn = []
    for value in axis.ticks:
        y = axis.y(value)
        drawn.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{axis.text(value)}</text>'
        )
    step = _step(labels)
    every = -(-len(labels) // MOST_LABELS) or 1
    drawn += [
        f'<text x="{LEFT + (index + 0.5) * step:.1f}" y="{HEIGHT - BOTTOM + 18}"'
        f' text-anchor="middle">{escape(labels[index])}</text>'
        for index in range(0, len(labels), every)
    ]
    drawn.append(f'<text x="4" y="13">{escape(axis.title)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">UTC</text>')
    name = escape(title, quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}, plot">'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}, {escape(axis.title)}">'
        + "".join(drawn)
        + "".join(parts)
        + "</svg></div>"
    )


def _legend(shown: dict[str, Values]) -> str:
    items = "".join(f'<li><i class="s-{escape(name)}"></i>{escape(name)}</li>' for name in shown)
    return f'<ul class="legend">{items}</ul>'
