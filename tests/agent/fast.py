"""Settings of agents in tests: short delays, cheap passphrases."""

from dataclasses import replace
from typing import Any

from heliograph.agent.agent import AgentSettings
from heliograph.agent.clients import ClientSettings
from heliograph.agent.keys import Cost
from heliograph.runtime.backoff import Backoff
from heliograph.transport.client import ClientConfig
from heliograph.wire.versions import VersionRange

FAST = Backoff(first=0.02, last=0.2)
CHEAP = Cost(operations=1, memory=8192)


def settings(version: int = 19, **changes: Any) -> AgentSettings:
    config = ClientConfig(versions=VersionRange(6, version), request_timeout=5.0)
    clients = ClientSettings(config=config, backoff=FAST, stable_after=0.5)
    return replace(
        AgentSettings(clients=clients, retry=FAST, cost=CHEAP, poll_interval=0.05), **changes
    )
