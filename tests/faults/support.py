"""Helpers of the fault tests: clients of a router that is a process, and what it pushed."""

import json

from heliograph.crypto.keys import generate_key_pair
from heliograph.documents import JsonObject
from heliograph.transport.client import Client
from heliograph.wire import ntf
from heliograph.wire.keys import Algorithm
from tests.faults.processes import SimulatorProcess
from tests.ntf.support import a_device, ask


async def register(client: Client) -> None:
    """Register a token of a new device."""
    keys = generate_key_pair(Algorithm.ED25519)
    dh_key = generate_key_pair(Algorithm.X25519).public
    answer = await ask(client, ntf.TNEW(a_device(), keys.public, dh_key), b"", keys.private)
    assert isinstance(answer, ntf.IDTKN)


def requests(apns: SimulatorProcess) -> list[JsonObject]:
    """Return all requests that the simulator got."""
    *lines, _ = apns.record.read_text().split("\n") if apns.record.exists() else [""]
    return [json.loads(line) for line in lines]  # the last one may not be complete yet


def accepted(apns: SimulatorProcess) -> list[JsonObject]:
    """Return the requests that it accepted."""
    return [request for request in requests(apns) if request["accepted"]]
