"""The diagrams in the documentation have the transitions that the machines have, and no others."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

from heliograph.agent.notifications.records import NtfSubscription, NtfToken
from heliograph.agent.notifications.subscription import (
    Decision,
    after,
    begin,
    decide,
    delete,
    forget,
)
from heliograph.agent.notifications.tokens.machine import Create, TokenPhase, phase, step
from tests.agent.notifications import test_subscription as subscriptions
from tests.agent.notifications.tokens import test_machine as tokens

PAGE = Path(__file__).parents[3] / "docs" / "agent-machines.md"
NOWHERE = "[*]"

Edges = set[tuple[str, str]]


def diagram(heading: str) -> Edges:
    text = PAGE.read_text()
    section = text[text.index(f"\n## {heading}\n") :]
    [drawn] = re.findall(r"```mermaid\n(.*?)```", section, re.DOTALL)[:1]
    return set(re.findall(r"^ +(\S+) --> (\S+?)(?::.*)?$", drawn, re.MULTILINE))


def test_the_token() -> None:
    edges: Edges = {(NOWHERE, TokenPhase.ABSENT.name)}
    for token, (event, _) in itertools.product(tokens.TOKENS.values(), tokens.TABLE.values()):
        result = step(token, event)
        created = any(isinstance(effect, Create) for effect in result.effects)
        where = TokenPhase.REGISTERING if created else phase(result.token)
        if where is not phase(token):
            edges.add((phase(token).name, where.name))
    assert diagram("The token") == edges


def _name(sub: NtfSubscription | None) -> str:
    if sub is None:
        return NOWHERE
    return "PARKED" if sub.action is None else sub.action.name


def _later(sub: NtfSubscription) -> set[str]:
    """Where a subscription may get to in one step."""
    token: NtfToken = subscriptions.TOKEN
    others = (token, replace(token, token_id=subscriptions.OTHER_TOKEN_ID))
    found = {
        _name(after(sub, outcome, known, subscriptions.INTERVALS, subscriptions.NOW))
        for outcome in subscriptions.OUTCOMES
        for known in others
    }
    if sub.action is None or not sub.action.is_delete:
        found |= {_name(delete(sub, None)), _name(forget(sub, token))}
    for queue in (subscriptions.BARE, subscriptions.KEYED):
        if decide(queue, sub, token) is Decision.RESET:
            found.add(_name(begin("c", queue, sub, token)))
    return found - ({_name(sub)} if _name(sub) != "NTF_CHECK" else set())


def test_a_subscription() -> None:
    edges: Edges = {
        (NOWHERE, _name(begin("c", queue, None, subscriptions.TOKEN)))
        for queue in (subscriptions.BARE, subscriptions.KEYED)
    }
    for sub in subscriptions.SUBS.values():
        edges |= {(_name(sub), later) for later in _later(sub)}
    assert diagram("A subscription") == edges
