"""Plots as SVG text: enough for a report, readable without scripts, fonts or network."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 860, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 34
COLOURS = (
    "#2f6f4f",
    "#4c9f70",
    "#a7c957",
    "#bc4749",
    "#d98c5f",
    "#577590",
    "#90a4ae",
    "#b0bec5",
    "#8d6e63",
    "#6d6875",
    "#ff0033",
)

Values = Sequence[float | None]


def stacked(labels: Sequence[str], series: dict[str, Values], unit: str) -> str:
    """Draw a stacked bar for each label, with one colour per series."""
    shown = {name: values for name, values in series.items() if any(values)}
    totals = [sum(values[i] or 0 for values in shown.values()) for i in range(len(labels))]
    top = nice(max(totals, default=0))
    step = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    parts = []
    below = [0.0] * len(labels)
    for colour, (name, values) in zip(_colours(series, shown), shown.items(), strict=True):
        for index, value in enumerate(values):
            if not value:
                continue
            high = _y(below[index] + value, top)
            height = _y(below[index], top) - high
            title = escape(f"{labels[index]} {name}: {value:g}")
            parts.append(
                f'<rect x="{LEFT + index * step:.1f}" y="{high:.1f}" width="{step * 0.9:.2f}"'
                f' height="{height:.2f}" fill="{colour}"><title>{title}</title></rect>'
            )
            below[index] += value
    return _frame(labels, parts, top, unit) + _legend(_colours(series, shown), list(shown))


def lines(labels: Sequence[str], series: dict[str, Values], unit: str) -> str:
    """Draw a line for each series, interrupted where a value is missing."""
    shown = {n: values for n, values in series.items() if any(v is not None for v in values)}
    top = nice(max((v for values in shown.values() for v in values if v is not None), default=0))
    step = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    parts = []
    for colour, (name, values) in zip(_colours(series, shown), shown.items(), strict=True):
        run: list[str] = []
        for index, value in enumerate([*values, None]):
            if value is not None:
                run.append(f"{LEFT + (index + 0.5) * step:.1f},{_y(value, top):.1f}")
                continue
            if len(run) == 1:
                x, y = run[0].split(",")
                parts.append(f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>')
            elif run:
                parts.append(
                    f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}"'
                    f' stroke-width="1.5"><title>{escape(name)}</title></polyline>'
                )
            run = []
    return _frame(labels, parts, top, unit) + _legend(_colours(series, shown), list(shown))


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


def _colours(series: dict[str, Values], shown: dict[str, Values]) -> list[str]:
    """Return the colours; a series has the same one in every report."""
    order = list(series)
    return [COLOURS[order.index(name) % len(COLOURS)] for name in shown]


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _frame(labels: Sequence[str], parts: list[str], top: float, unit: str) -> str:
    axis = []
    for share in (0.0, 0.5, 1.0):
        y = _y(top * share, top)
        axis.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:g}</text>'
        )
    step = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    every = max(1, len(labels) // 8)
    axis += [
        f'<text x="{LEFT + (index + 0.5) * step:.1f}" y="{HEIGHT - 16}"'
        f' text-anchor="middle">{escape(labels[index])}</text>'
        for index in range(0, len(labels), every)
    ]
    axis.append(f'<text x="{LEFT}" y="{HEIGHT - 2}">{escape(unit)}</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(unit)}">'
        + "".join(axis)
        + "".join(parts)
        + "</svg>"
    )


def _legend(colours: list[str], names: list[str]) -> str:
    items = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for colour, name in zip(colours, names, strict=True)
    )
    return f'<p class="legend">{items}</p>'
