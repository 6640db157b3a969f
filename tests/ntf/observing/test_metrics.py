import asyncio
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from heliograph.ntf.observing import metrics as module
from heliograph.ntf.observing.metrics import SAVED_COUNTERS, NtfCollector
from heliograph.ntf.observing.stats import Counters, Stats
from heliograph.ntf.router import NtfSettings
from heliograph.ntf.store import totals
from heliograph.push.provider import RetryLater
from heliograph.runtime.metrics import expose
from heliograph.sim.providers.script import ScriptRule
from heliograph.wire.ntf.tokens import PushProvider
from tests.ntf.support import SETTINGS, NtfWorld, Recorder, a_device, a_world
from tests.waiting import until

REFERENCE = Path(__file__).parent / "reference_metrics.txt"


def numbers(collector: NtfCollector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    lines = [line for line in expose(registry).splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def collector_of(world: NtfWorld) -> NtfCollector:
    return NtfCollector(world.router, world.listener, partial(totals.count, world.url))


async def test_what_happened_is_counted(world: NtfWorld) -> None:
    collector = collector_of(world)
    phone = await world.registered()
    [queue, other] = await world.queues(2)
    for each in (queue, other):
        await phone.subscribe(each)
    world.apns.skip(phone.device)
    await world.send(queue)
    await phone.notified_of(queue)
    await world.until_none_pending()
    collector.totals = await totals.count(world.url)
    found = numbers(collector)
    expected = {
        "simplex_ntf_tokens_created": 1,
        "simplex_ntf_tokens_verified": 1,
        "simplex_ntf_tokens_total": 1,
        "simplex_ntf_tokens_count_daily": 1,
        "simplex_ntf_subscriptions_created": 2,
        "simplex_ntf_subscriptions_approx_total": 2,
        "simplex_ntf_subscriptions_count_monthly": 1,
        "simplex_ntf_smp_subscription_active_server_count_other": 1,
        "simplex_ntf_smp_subscription_active_sub_count_other": 2,
        "simplex_ntf_smp_subscription_pending_sub_count_other": 0,
        "simplex_ntf_smp_service_subscription_active_sub_count_other": 0,
        "simplex_ntf_notifications_received": 1,
        "simplex_ntf_notifications_delivered": 1,
        "simplex_ntf_notifications_verification_queued": 1,
        "simplex_ntf_notifications_verification_delivered": 1,
        "simplex_ntf_notifications_total": 1,
        "simplex_ntf_smp_subscribers_count_other": 1,
        "simplex_ntf_smp_sessions_count": 1,
        "simplex_ntf_apns_push_queue_length": 0,
        "heliograph_ntf_push_latency_seconds_count": 1,
        'heliograph_ntf_push_latency_seconds_bucket{le="+Inf"}': 1,
        'heliograph_ntf_tokens{status="ACTIVE"}': 1,
        'heliograph_ntf_subscriptions{status="ACTIVE"}': 2,
        "heliograph_ntf_oldest_pending_push_seconds": 0,
        "heliograph_ntf_drift_repaired_total": 0,
        "heliograph_ntf_clients": 1,
    }
    assert {name: found.get(name) for name in expected} == expected


async def test_counters_that_a_later_run_continues(world: NtfWorld) -> None:
    """Those are `SAVED_COUNTERS`, and no others."""
    saved = Stats()
    for name, value in asdict(Counters()).items():
        setattr(saved.counters, name, {"smp.example.com": 7} if isinstance(value, dict) else 7)
    world.router.stats.restore(saved.dump())
    counters = [item for item in collector_of(world).collect() if item.type == "counter"]
    samples = [sample for item in counters for sample in item.samples]
    continued = {sample.name for sample in samples if sample.value >= 7}
    assert continued == {item.name for item in samples if item.name.startswith(SAVED_COUNTERS)}
    assert "heliograph_ntf_pushes_expired_total" in continued


async def test_what_is_pending_and_why(sqlite_url: str, tmp_path: Path) -> None:
    provider = Recorder()
    provider.always = RetryLater(60.0, "ServiceUnavailable")
    world = NtfWorld(sqlite_url, tmp_path)
    world.providers = {PushProvider.APNS_TEST: provider}
    await world.start()
    collector = collector_of(world)
    phone = await world.phone(a_device())
    await phone.tnew()
    await until(lambda: world.router.stats.failures)
    collector.totals = await totals.count(world.url)
    found = numbers(collector)
    assert found['heliograph_ntf_pending_pushes{kind="verification"}'] == 1
    assert found['heliograph_ntf_push_failures_total{reason="ServiceUnavailable"}'] == 1
    assert 0 < found["heliograph_ntf_oldest_pending_push_seconds"] < 60
    assert found["simplex_ntf_apns_push_queue_length"] == 1
    await world.stop()


async def test_own_servers_by_name(sqlite_url: str, tmp_path: Path) -> None:
    settings = NtfSettings(
        outbox=SETTINGS.outbox, subscriber=SETTINGS.subscriber, own_domains=("127.0.0.1",)
    )
    async with a_world(sqlite_url, tmp_path, settings) as world:
        collector = collector_of(world)
        phone = await world.registered()
        queue = await world.queue()
        await phone.subscribe(queue)
        await world.send(queue)
        counters = world.router.stats.counters
        await until(lambda: counters.ntf_delivered)
        world.apns.play(ScriptRule(status=503, reason="ServiceUnavailable", times=1))
        await world.send(queue)
        await until(lambda: counters.ntf_delivered == 2)
        found = numbers(collector)
    assert found['simplex_ntf_notifications_received_own{server="127.0.0.1"}'] == 2
    assert found['simplex_ntf_notifications_delivered_own{server="127.0.0.1"}'] == 2
    assert found['simplex_ntf_notifications_failed_own{server="127.0.0.1"}'] == 1
    for name in (
        "simplex_ntf_smp_subscription_active_server_count_own",
        "simplex_ntf_smp_subscription_active_sub_count_own",
        "simplex_ntf_smp_subscribers_count_own",
        "simplex_ntf_smp_agent_clients_count_own",
    ):
        assert found[f'{name}{{server="127.0.0.1"}}'] == 1
    assert found["simplex_ntf_smp_subscribers_count_other"] == 0


async def test_names_are_the_references(small_world: NtfWorld) -> None:
    collector = collector_of(small_world)
    collector.totals = await totals.count(small_world.url)
    ours = {name.partition("{")[0] for name in numbers(collector)}
    missing = set(REFERENCE.read_text().split()) - ours
    assert all(name.endswith("_own") for name in missing), missing  # only with own servers


async def test_names_tell_nobody_apart(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    await phone.subscribe(await small_world.queue())
    collector = collector_of(small_world)
    collector.totals = await totals.count(small_world.url)
    for name in numbers(collector):
        keys = set(re.findall(r'(\w+)="', name))
        assert keys <= {"status", "kind", "le", "reason", "provider", "version", "rts_options"}
        assert "127.0.0.1" not in name
        assert phone.device.token.decode() not in name


async def test_counting_goes_on_after_a_failure(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "COUNT_INTERVAL", 0.01)
    monkeypatch.setattr(module, "COUNT_SHARE", 1)
    failures = 2

    async def counting() -> totals.Totals:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("the disk is on fire")
        return totals.Totals()

    collector = NtfCollector(small_world.router, small_world.listener, counting)
    task = asyncio.create_task(collector.count())
    await until(lambda: collector.totals)
    task.cancel()
    assert caplog.text.count("counting for the metrics failed") == 2
