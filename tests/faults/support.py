"""Helpers of the fault tests: clients of a router that is a process."""

from heliograph.crypto.keys import generate_key_pair
from heliograph.transport.client import Client
from heliograph.wire import ntf
from heliograph.wire.keys import Algorithm
from tests.ntf.support import a_device, ask


async def register(client: Client) -> None:
    """Register a token of a new device."""
    keys = generate_key_pair(Algorithm.ED25519)
    dh_key = generate_key_pair(Algorithm.X25519).public
    answer = await ask(client, ntf.TNEW(a_device(), keys.public, dh_key), b"", keys.private)
    assert isinstance(answer, ntf.IDTKN)
