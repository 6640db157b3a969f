"""The numbers of a router that works, under the reference's names."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from heliograph.crypto.certificates import create_authority, issue_leaf
from heliograph.crypto.keys import generate_key_pair
from heliograph.runtime.metrics import expose
from heliograph.smp import metrics as module
from heliograph.smp.metrics import SmpCollector
from heliograph.smp.router import SmpRouter
from heliograph.smp.settings import SmpSettings
from heliograph.transport.client import Client
from heliograph.transport.handshake import ServerIdentity
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Listener
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags, QueueMode, QueueReqData
from tests.waiting import until

HOST = "127.0.0.1"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Any]:
    now = time.time()
    leaf = issue_leaf(create_authority("SMP server CA", now), HOST, now)
    identity = ServerIdentity.of(leaf, now)
    router = await SmpRouter.start(
        f"sqlite:///{tmp_path}/smp.db", SmpSettings(ntf_delivery_interval=0)
    )
    listener = Listener(SMP, identity, router, request_client_certificate=True)
    port = await listener.start(HOST, 0)
    address = ServerAddress(Scheme.SMP, (decode_host(HOST),), str(port), identity.fingerprint)
    collector = SmpCollector(router, listener, port)
    yield SimpleNamespace(router=router, address=address, collector=collector, port=port)
    await listener.close()
    await router.close()


def numbers(collector: SmpCollector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    text = expose(registry)
    list(text_string_to_metric_families(text))  # must be readable by Prometheus
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _ in lines}) == len(lines)
    return {name: float(value) for name, value in lines}


async def test_a_message_with_a_notification(world: Any) -> None:
    got: asyncio.Queue[Any] = asyncio.Queue()
    client = await Client.connect(world.address)
    notified = await Client.connect(
        world.address, on_push=lambda _, message: got.put_nowait(message)
    )
    keys, dh_keys = generate_key_pair(Algorithm.X25519), generate_key_pair(Algorithm.X25519)
    new = smp.NEW(keys.public, dh_keys.public, queue_data=QueueReqData(QueueMode.MESSAGING))
    ids = await client.request(new, b"", keys.private)
    nid = await client.request(smp.NKEY(keys.public, dh_keys.public), ids.rcv_id, keys.private)
    await notified.request(smp.NSUB(), nid.notifier_id, keys.private)
    await client.request(smp.SEND(MsgFlags(True), b"hello"), ids.snd_id)
    async with asyncio.timeout(10):
        assert isinstance(await got.get(), smp.NMSG)
    first = numbers(world.collector)
    assert "simplex_smp_queues_total1" not in first  # nothing was counted yet
    counting = asyncio.create_task(world.collector.count())
    await until(lambda: "simplex_smp_queues_total1" in numbers(world.collector))
    counting.cancel()
    found = numbers(world.collector)
    expected = {
        "simplex_smp_queues_created": 1,
        "simplex_smp_queues_total1": 1,
        "simplex_smp_queues_total2": 1,
        "simplex_smp_queues_notify_total1": 1,
        "simplex_smp_queues_notify_created": 1,
        "simplex_smp_loaded_queues_queue_count": 1,
        'simplex_smp_queues_deleted{type="all"}': 0,
        "simplex_smp_messages_sent": 1,
        "simplex_smp_messages_notify_sent": 1,
        "simplex_smp_messages_total": 1,
        "simplex_smp_messages_ntf_successes": 1,
        "simplex_smp_subscribtion_total": 1,
        "simplex_smp_subscribtion_clients_total": 1,
        "simplex_smp_subscription_ntf_total": 1,
        "simplex_smp_subscription_ntf_requests": 1,
        "simplex_smp_subscription_ntf_clients_total": 1,
        "simplex_smp_ntf_services_count": 0,
        "simplex_smp_ntf_services_queues_count": 0,
        "simplex_smp_ntf_services_assoc_new": 0,
        "simplex_smp_rcv_services_count": 0,
        "simplex_smp_rcv_services_queues_count": 0,
        "simplex_smp_subscription_ntf_service_subs_total": 0,
        "simplex_smp_queues_blocked": 0,
        "simplex_smp_queues_notify_new_created": 0,
        "simplex_smp_subscription_ntf_requests_batch": 0,
        "simplex_smp_messages_ntf_successes_batch": 1,
        "simplex_smp_messages_notify_received": 0,
        'simplex_smp_subscribtion_errors{type="prohibited"}': 0,
        'simplex_smp_subscribtion_ntf_errors{type="duplicate"}': 0,
        'simplex_smp_messages_notify_get_errors{type="nomsg"}': 0,
        f'simplex_smp_sockets_accepted{{port="{world.port}"}}': 2,
        "simplex_smp_clients_total": 2,
        f'simplex_smp_sockets_active{{port="{world.port}"}}': 2,
        "heliograph_smp_auth_errors_total": 0,
    }
    assert {name: found[name] for name in expected} == expected
    await client.close()
    await notified.close()


async def test_counting_goes_on_after_a_failure(
    world: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "COUNT_INTERVAL", 0.01)
    monkeypatch.setattr(module, "COUNT_SHARE", 1)
    counts, failures, counted = world.router.store.counts, 2, asyncio.Event()

    async def failing() -> tuple[int, int, int, int]:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("the disk is on fire")
        result: tuple[int, int, int, int] = await counts()
        counted.set()
        return result

    monkeypatch.setattr(world.router.store, "counts", failing)
    task = asyncio.create_task(world.collector.count())
    async with asyncio.timeout(10):
        await counted.wait()
    await asyncio.sleep(0)
    assert numbers(world.collector)["simplex_smp_queues_total1"] == 0
    task.cancel()
    assert caplog.text.count("counting for the metrics failed") == 2


async def test_names_tell_nobody_apart(world: Any) -> None:
    for name in numbers(world.collector):
        _, _, labels = name.partition("{")
        keys = {label.split("=")[0] for label in labels.rstrip("}").split(",") if label}
        assert keys <= {"type", "source", "port", "version", "rts_options", "limit"}
