from dataclasses import replace
from pathlib import Path

from heliograph.ntf.diagnosis.probe import ProbePath, probe
from heliograph.push.provider import DeviceTokenInvalid, RetryLater
from heliograph.sim.providers.script import ScriptRule
from heliograph.wire.addresses import decode_address
from heliograph.wire.ntf.push import CheckMessagesPush, MessagePush, Push, VerificationPush
from heliograph.wire.ntf.tokens import InvalidReason, PushProvider
from tests.ntf.support import NtfWorld, Recorder, a_device

Steps = list[tuple[str, str | None]]

ALL = [
    "connect",
    "ping",
    "register a token",
    "verification is pushed",
    "delete the token",
    "the token is gone",
]

WHOLE_PATH = [
    "connect",
    "ping",
    "register a token",
    "verification is pushed",
    "open the verification",
    "connect for messages",
    "create a queue",
    "add a notifier",
    "subscribe",
    "subscription is active",
    "send a message",
    "notification is pushed",
    "open the notification",
]
CLEAN_UP = ["delete the queue", "delete the token", "the token is gone"]


class Device:
    """Receives from the simulated APNs, after one wake-up that nobody asked for."""

    def __init__(self, world: NtfWorld) -> None:
        self.device = a_device()
        self._world = world
        self._woken = False

    async def receive(self) -> Push:
        if not self._woken:
            self._woken = True
            return CheckMessagesPush()
        return await self._world.apns.push(self.device)


class Garbling(Device):
    """Receives boxes with one bit changed, of one kind of push."""

    def __init__(self, world: NtfWorld, kind: type[Push]) -> None:
        super().__init__(world)
        self._kind = kind

    async def receive(self) -> Push:
        push = await super().receive()
        if isinstance(push, self._kind) and isinstance(push, VerificationPush | MessagePush):
            return replace(push, box=bytes([push.box[0] ^ 1]) + push.box[1:])
        return push


async def probed(
    address: str, within: float = 10.0, path: ProbePath | None = None
) -> tuple[bool, Steps]:
    steps: Steps = []

    def report(name: str, seconds: float, problem: str | None) -> None:
        assert 0 <= seconds < 60
        steps.append((name, problem))

    return await probe(decode_address(address), report, within, path), steps


async def test_all_is_well(world: NtfWorld) -> None:
    well, steps = await probed(str(world.address))
    assert well
    assert steps == [(name, None) for name in ALL]
    [[count]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM tokens"))
    assert count == 0
    assert world.router.stats.counters.tkn_created == 0  # seed 001, behaviour 4


async def test_nobody_there(small_world: NtfWorld) -> None:
    address = str(small_world.address)
    await small_world.listener.close()
    well, steps = await probed(address)
    assert not well
    [(name, problem)] = steps
    assert name == "connect"
    assert problem


async def test_another_router_there(small_world: NtfWorld) -> None:
    address = str(small_world.address)
    fingerprint = address.removeprefix("ntf://").partition("@")[0]
    well, steps = await probed(address.replace(fingerprint, "A" * 43 + "="))
    assert not well
    assert [name for name, _ in steps] == ["connect"]


async def test_pushes_do_not_go_out(sqlite_url: str, tmp_path: Path) -> None:
    for outcome, words in (
        (
            RetryLater(60.0, "ServiceUnavailable"),
            "within 1 s the push was not sent: see the router's log",
        ),
        (DeviceTokenInvalid(InvalidReason.BAD), "the token is INVALID,BAD"),
    ):
        provider = Recorder()
        provider.always = outcome
        world = NtfWorld(sqlite_url, tmp_path)
        world.providers = {PushProvider.APNS_NULL: provider}
        await world.start()
        well, steps = await probed(str(world.address), 1.0)
        assert not well
        assert steps[3] == ("verification is pushed", words)
        assert steps[4] == ("delete the token", None)
        [[count]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM tokens"))
        assert count == 0
        await world.stop()


async def nothing_is_left(world: NtfWorld) -> None:
    [[tokens]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM tokens"))
    [[subscriptions]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM subscriptions"))
    assert tokens == subscriptions == 0
    sql = "SELECT COUNT(*) FROM queues"
    [[queues]] = await world.smp.router.store.database.read(lambda tx: tx.query(sql))
    assert queues == 0


async def test_the_whole_path(world: NtfWorld) -> None:
    path = ProbePath(world.smp.address, Device(world))
    well, steps = await probed(str(world.address), path=path)
    assert steps == [(name, None) for name in (*WHOLE_PATH, *CLEAN_UP)]
    assert well
    await nothing_is_left(world)


async def test_no_verification_comes(small_world: NtfWorld) -> None:
    small_world.apns.play(ScriptRule(status=503))
    path = ProbePath(small_world.smp.address, Device(small_world))
    well, steps = await probed(str(small_world.address), 1.0, path)
    assert not well
    assert [name for name, _ in steps] == [*WHOLE_PATH[:4], *CLEAN_UP[1:]]
    assert str(steps[3][1]).startswith("within 1 s no push came: see [push]")


async def test_a_verification_for_somebody_else(small_world: NtfWorld) -> None:
    path = ProbePath(small_world.smp.address, Garbling(small_world, VerificationPush))
    well, steps = await probed(str(small_world.address), path=path)
    assert not well
    assert steps[4][0] == "open the verification"
    assert steps[4][1]
    await nothing_is_left(small_world)


async def test_no_messaging_router(small_world: NtfWorld) -> None:
    address = small_world.smp.address
    await small_world.smp.listener.close()
    well, steps = await probed(
        str(small_world.address), 1.0, ProbePath(address, Device(small_world))
    )
    assert not well
    assert [name for name, _ in steps] == [*WHOLE_PATH[:6], *CLEAN_UP[1:]]


async def test_the_router_does_not_reach_the_messaging_router(small_world: NtfWorld) -> None:
    """The probe does, and subscriptions stay pending."""
    subscriber = small_world.settings.subscriber
    client = replace(subscriber.client, allow=lambda address: False)
    small_world.settings = replace(
        small_world.settings, subscriber=replace(subscriber, client=client)
    )
    await small_world.restart_ntf()
    path = ProbePath(small_world.smp.address, Device(small_world))
    well, steps = await probed(str(small_world.address), path=path)
    assert not well
    failed = [(name, problem) for name, problem in steps if problem]
    [(name, problem)] = failed
    assert name == "subscription is active"
    assert problem == "the subscription is ERR the router's address is private"
    assert [name for name, _ in steps][-3:] == CLEAN_UP
    await nothing_is_left(small_world)


async def test_a_notification_that_cannot_be_opened(small_world: NtfWorld) -> None:
    path = ProbePath(small_world.smp.address, Garbling(small_world, MessagePush))
    well, steps = await probed(str(small_world.address), path=path)
    assert not well
    assert [name for name, problem in steps if problem] == ["open the notification"]
    await nothing_is_left(small_world)
