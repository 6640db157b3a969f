import json
from typing import Any

import pytest

from heliograph.sim.providers.http2 import MAX_STREAMS, Act
from heliograph.sim.providers.script import (
    NO_RULE,
    Script,
    ScriptError,
    ScriptRule,
    dump_script,
    load_script,
)


def decisions(script: Script, *tokens: str) -> list[int | None]:
    return [script.decide(token).status for token in tokens]


def test_nothing_is_said_without_rules() -> None:
    assert Script().decide("a") is NO_RULE


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, [500] * 6),
        ({"token": "b"}, [None, 500] * 3),
        ({"at": 2}, [None, 500, None, None, None, None]),
        ({"every": 3}, [None, None, 500, None, None, 500]),
        ({"from": 4}, [None, None, None, 500, 500, 500]),
        ({"to": 2}, [500, 500, None, None, None, None]),
        ({"from": 2, "to": 3}, [None, 500, 500, None, None, None]),
        ({"times": 2}, [500, 500, None, None, None, None]),
        ({"token": "b", "times": 2}, [None, 500, None, 500, None, None]),
    ],
)
def test_which_requests(rule: dict[str, Any], expected: list[int | None]) -> None:
    script = load_script({"rules": [{**rule, "status": 500}]})
    assert decisions(script, *"ababab") == expected


def test_the_first_rule_that_fits_decides() -> None:
    script = load_script(
        {"rules": [{"at": 1, "status": 400}, {"to": 2, "status": 410}, {"status": 503}]}
    )
    assert decisions(script, "a", "a", "a") == [400, 410, 503]
    assert [rule.used for rule in script.rules] == [1, 1, 1]


def test_all_members() -> None:
    which = {"token": "a", "at": 1, "every": 1, "from": 1, "to": 9, "times": 2}
    answer = {"status": 429, "reason": "TooManyRequests", "retry_after": 1.5}
    members = which | answer | {"delay": 0.5, "do": "goaway"}
    script = load_script({"rules": [members], "max_streams": 1})
    assert script.max_streams == 1
    assert script.decide("a") == ScriptRule(
        "a", 1, 1, 1, 9, 2, 429, "TooManyRequests", 1.5, 0.5, Act.GOAWAY, used=1
    )
    dumped = json.loads(json.dumps(dump_script(script)))
    assert dumped["rules"] == [{**members, "used": 1}]
    assert dumped["requests"] == 1


def test_defaults() -> None:
    script = load_script({})
    assert script == Script([], MAX_STREAMS, 0)


@pytest.mark.parametrize(
    "data",
    [
        *(None, [], "rules", {"rule": []}, {"rules": {}}, {"rules": [1]}),
        *({"max_streams": 0}, {"max_streams": True}, {"max_streams": "1"}),
        *({"rules": [{"status": "400"}]}, {"rules": [{"at": 0}]}, {"rules": [{"at": True}]}),
        *({"rules": [{"do": "what"}]}, {"rules": [{"do": 1}]}, {"rules": [{"delay": "1"}]}),
        *({"rules": [{"delay": True}]}, {"rules": [{"token": 1}]}, {"rules": [{"used": 1}]}),
        *({"rules": [{"first": 1}]}, {"rules": [{"act": "reset"}]}, {"rules": [{"times": -1}]}),
    ],
)
def test_malformed(data: object) -> None:
    with pytest.raises(ScriptError):
        load_script(data)
