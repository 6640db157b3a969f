from pathlib import Path

from heliograph.ntf.probe import probe
from heliograph.push.provider import RetryLater, TokenInvalid
from heliograph.wire.addresses import decode_address
from heliograph.wire.tokens import InvalidReason, PushProvider
from tests.ntf.support import NtfWorld, Recorder

Steps = list[tuple[str, str | None]]

ALL = [
    "connect",
    "ping",
    "register a token",
    "verification is pushed",
    "delete the token",
    "the token is gone",
]


async def probed(address: str, patience: float = 10.0) -> tuple[bool, Steps]:
    steps: Steps = []

    def report(name: str, seconds: float, problem: str | None) -> None:
        assert 0 <= seconds < 60
        steps.append((name, problem))

    return await probe(decode_address(address), report, patience), steps


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
        (RetryLater(60.0, "ServiceUnavailable"), "TimeoutError"),
        (TokenInvalid(InvalidReason.BAD), "the token is INVALID,BAD"),
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
