"""Helpers of the provider tests: simulators that run, and deliveries for them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.push.provider import Delivery, Provider, PushOutcome
from heliograph.sim.providers.script import load_script
from heliograph.sim.providers.simulator import SimulatedService, Simulator
from heliograph.wire.ntf.push import (
    PUSH_SIZE,
    CheckMessagesPush,
    MessagePush,
    Push,
    VerificationPush,
)
from heliograph.wire.ntf.tokens import DeviceToken

NONCE = bytes(range(24))
BOX = bytes(index % 251 for index in range(PUSH_SIZE + 16))
MESSAGE = MessagePush(NONCE, BOX)
VERIFICATION = VerificationPush(NONCE, BOX)
CHECK = CheckMessagesPush()
EXPIRES_AT = 2_000_000_000


class Clock:
    """A clock that tests set."""

    def __init__(self, now: float | None = None) -> None:
        self.now = time.time() if now is None else now

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def running(service: SimulatedService, directory: Path) -> AsyncIterator[Simulator]:
    simulator = Simulator(service, directory)
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.close()


@contextlib.asynccontextmanager
async def closing(provider: Provider) -> AsyncIterator[Provider]:
    try:
        yield provider
    finally:
        await provider.close()


def play(simulator: Simulator, *rules: dict[str, Any], **script: Any) -> None:
    simulator.set_script(load_script({"rules": list(rules), **script}))


def delivery(device: DeviceToken, push: Push = MESSAGE, **values: Any) -> Delivery:
    return Delivery(device, push, values.pop("expires_at", EXPIRES_AT), **values)


async def send_many(provider: Provider, deliveries: list[Delivery]) -> list[PushOutcome]:
    return await asyncio.gather(*(provider.send(item) for item in deliveries))


def says_nothing(caplog: pytest.LogCaptureFixture, *secrets: str) -> Iterator[None]:
    """A fixture's body: whatever was logged, at any level, has none of the secrets."""
    caplog.set_level("DEBUG")
    yield
    for record in caplog.get_records("call"):
        if record.name.startswith("hpack"):
            continue  # the simulator's side
        text = record.getMessage() + str(record.exc_info) + str(record.args)
        assert not any(secret in text for secret in secrets), record.name
