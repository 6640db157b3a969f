"""As much of PromQL as shows which metrics and labels an expression uses.

It raises `ValueError` for what is not an expression: unbalanced brackets, strange characters, two
values without an operator between them.
"""

import re
from dataclasses import dataclass, field

FUNCTIONS = frozenset(
    {
        *("abs", "avg", "ceil", "changes", "clamp_max", "clamp_min", "count", "delta", "floor"),
        *("histogram_quantile", "increase", "max", "min", "quantile", "rate", "sum", "time"),
    }
)
GROUPING = frozenset({"by", "without", "on", "ignoring"})
SET_OPERATORS = frozenset({"and", "or", "unless"})

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<operator>=~|!~|==|!=|>=|<=|[-+*/%^<>=])
    | (?P<bracket>[(){},])
    )""",
    re.VERBOSE,
)


@dataclass
class Used:
    """Metrics of an expression, and the labels it matches or groups by."""

    metrics: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    matchers: dict[str, set[str]] = field(default_factory=dict)


def tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"not PromQL: {text[at : at + 20]!r}")
        kind = match.lastgroup
        assert kind is not None
        found.append((kind, match[kind]))
        at = match.end()
    return found


def used(text: str) -> Used:
    parser = _Parser(tokens(text))
    parser.expression()
    if parser.left:
        raise ValueError(f"what is {parser.left[0][1]!r} doing here?")
    return parser.used


class _Parser:
    def __init__(self, left: list[tuple[str, str]]) -> None:
        self.left = left
        self.used = Used()

    def take(self, expected: str | None = None) -> tuple[str, str]:
        if not self.left or expected not in (None, self.left[0][1]):
            raise ValueError(f"{expected or 'something'} is missing")
        return self.left.pop(0)

    def is_next(self, *texts: str) -> bool:
        return bool(self.left) and self.left[0][1] in texts

    def expression(self) -> None:
        self.value()
        while self.left and (self.left[0][0] == "operator" or self.is_next(*SET_OPERATORS)):
            self.take()
            if self.is_next(*GROUPING):
                self.grouping()
            self.value()

    def value(self) -> None:
        kind, text = self.take()
        if kind in ("number", "string"):
            return
        if text == "(":
            self.expression()
            self.take(")")
        elif text == "-":
            self.value()
        elif kind == "name" and text in FUNCTIONS:
            if self.is_next(*GROUPING):
                self.grouping()
            self.arguments()
            if self.is_next(*GROUPING):
                self.grouping()
        elif kind == "name":
            self.selector(text)
        else:
            raise ValueError(f"what is {text!r} doing here?")

    def arguments(self) -> None:
        self.take("(")
        while not self.is_next(")"):
            self.expression()
            if not self.is_next(")"):
                self.take(",")
        self.take(")")

    def grouping(self) -> None:
        self.take()
        self.take("(")
        while not self.is_next(")"):
            self.used.labels.add(self.take()[1])
            if not self.is_next(")"):
                self.take(",")
        self.take(")")

    def selector(self, metric: str) -> None:
        self.used.metrics.add(metric)
        if self.is_next("{"):
            self.take()
            while not self.is_next("}"):
                label = self.take()[1]
                if self.take()[1] not in ("=", "!=", "=~", "!~"):
                    raise ValueError("a matcher has =, !=, =~ or !~")
                kind, value = self.take()
                if kind != "string":
                    raise ValueError("a matcher has a string")
                self.used.matchers.setdefault(label, set()).add(value[1:-1])
                if not self.is_next("}"):
                    self.take(",")
            self.take("}")
        if self.left and self.left[0][0] == "range":
            self.take()
