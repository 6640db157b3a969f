"""Scripted answers of a simulated provider: the first rule that matches decides.

Pure, and the same for all providers. The control endpoint accepts it as JSON:

    {"max_streams": 1,
     "rules": [{"token": "00ff", "status": 410, "reason": "Unregistered"},
               {"every": 3, "status": 503, "retry_after": 2, "times": 10},
               {"from": 5, "to": 9, "delay": 0.5},
               {"at": 20, "do": "goaway"},
               {"do": "reset"}]}

Requests that pass all checks are counted, from 1, since the script was set; `at`, `every`, `from`
and `to` refer to that number, and `times` is how often a rule is used. A rule without a status
accepts the request, unless `do` prevents an answer. `do` is one of
`heliograph.sim.providers.http2.Act`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from heliograph.documents import JsonObject
from heliograph.sim.providers.http2 import MAX_STREAMS, Act

_NAMES = {"from": "first", "to": "last", "do": "act"}
_TYPES: dict[str, tuple[type, ...]] = {
    "token": (str,),
    "reason": (str,),
    "delay": (int, float),
    "retry_after": (int, float),
}


class ScriptError(ValueError):
    """An invalid script; the text explains why."""


@dataclass(slots=True)
class ScriptRule:
    token: str | None = None
    at: int | None = None
    every: int | None = None
    first: int | None = None
    last: int | None = None
    times: int | None = None
    status: int | None = None
    reason: str | None = None
    retry_after: float | None = None
    delay: float = 0.0
    act: Act = Act.ANSWER
    used: int = 0

    def fits(self, token: str, number: int) -> bool:
        return (
            (self.token is None or self.token == token)
            and (self.at is None or self.at == number)
            and (self.every is None or number % self.every == 0)
            and (self.first is None or number >= self.first)
            and (self.last is None or number <= self.last)
            and (self.times is None or self.used < self.times)
        )


NO_RULE = ScriptRule()


@dataclass(slots=True)
class Script:
    rules: list[ScriptRule] = field(default_factory=list)
    max_streams: int = MAX_STREAMS
    requests: int = 0

    def decide(self, token: str) -> ScriptRule:
        """Return the rule for the next valid request."""
        self.requests += 1
        for rule in self.rules:
            if rule.fits(token, self.requests):
                rule.used += 1
                return rule
        return NO_RULE


def load_script(data: object) -> Script:
    if not isinstance(data, dict) or not data.keys() <= {"rules", "max_streams"}:
        raise ScriptError("a script has the members rules and max_streams")
    rules = data.get("rules", [])
    if not isinstance(rules, list):
        raise ScriptError("rules is a list")
    streams = data.get("max_streams", MAX_STREAMS)
    if not _is_count(streams):
        raise ScriptError("max_streams is a positive number")
    return Script([_load_rule(rule) for rule in rules], streams)


def dump_script(script: Script) -> JsonObject:
    names = {name: key for key, name in _NAMES.items()}
    rules = [
        {
            names.get(item.name, item.name): getattr(rule, item.name)
            for item in fields(ScriptRule)
            if getattr(rule, item.name) is not None
        }
        for rule in script.rules
    ]
    return {"rules": rules, "max_streams": script.max_streams, "requests": script.requests}


def _load_rule(data: object) -> ScriptRule:
    if not isinstance(data, dict):
        raise ScriptError("a rule is an object")
    return ScriptRule(**{_NAMES.get(key, key): _value(key, value) for key, value in _known(data)})


def _known(data: Mapping[str, object]) -> list[tuple[str, object]]:
    names = {item.name for item in fields(ScriptRule)}
    known = names - set(_NAMES.values()) - {"used"} | set(_NAMES)
    unknown = data.keys() - known
    if unknown:
        raise ScriptError(f"{min(unknown)} is not one of {', '.join(sorted(known))}")
    return list(data.items())


def _value(key: str, value: object) -> Any:  # a field of ScriptRule
    if key == "do":
        try:
            return Act(str(value))
        except ValueError:
            raise ScriptError(f"do is one of {', '.join(Act)}") from None
    types = _TYPES.get(key)
    if types is None and not _is_count(value):
        raise ScriptError(f"{key} is a positive number")
    if types is not None and (not isinstance(value, types) or isinstance(value, bool)):
        raise ScriptError(f"{key} is a {'text' if str in types else 'number'}")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
