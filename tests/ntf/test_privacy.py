"""No device token, ID, key, code or address in logs or the journal, whatever happens."""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from heliograph.db.errors import DatabaseError
from heliograph.journal.identity import JournalIdentity
from heliograph.journal.schema import violations
from heliograph.journal.storage.reader import read_events
from heliograph.journal.storage.writer import JournalWriter
from heliograph.ntf.limits import ClientState
from heliograph.ntf.store import receiving
from heliograph.ntf.store.records import Subscription, Token
from heliograph.sim.providers.http2 import Act
from heliograph.sim.providers.script import ScriptRule
from heliograph.wire import ntf, smp
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    NtfSubStatus,
    SubscriptionState,
    TokenStatus,
)
from heliograph.wire.primitives import b64encode
from tests.ntf.support import SETTINGS, NtfWorld, Phone, a_device
from tests.smp.support import Queue
from tests.waiting import until

KEY = bytes(range(100, 132))


def forms(secret: bytes) -> Iterator[str]:
    yield secret.hex()
    yield b64encode(secret)
    yield b64encode(secret).rstrip("=")
    yield repr(secret)[2:-1]


def secrets_of(phone: Phone, queues: list[Queue], *devices: APNSDeviceToken) -> Iterator[str]:
    values = [phone.token_id, phone.secret, *phone.subscriptions]
    values += [phone.keys.public, phone.keys.private, phone.dh_keys.public, phone.dh_keys.private]
    for queue in queues:
        assert queue.notifier is not None
        values += [queue.rcv_id, queue.snd_id, queue.notifier_id, queue.notifier.auth.private]
    for value in values:
        yield from forms(value)
    for device in (phone.device, *devices):
        yield device.token.decode()
    yield "127.0.0.1"


def written(directory: Path, world: NtfWorld) -> str:
    """What the real journals of both routers hold after the same events, in any form."""
    for part, notes in (("ntf", world.journal), ("smp", world.smp.journal)):
        journal = JournalWriter(directory, JournalIdentity(part * 8, KEY), part)
        notes.replay(journal)
        journal.close()
        assert journal.lost == 0
        assert journal.written == len(notes.events)
    found = list(read_events(directory))
    assert all(not list(violations(event)) for event in found)
    raw = [path.read_bytes().decode("latin-1") for path in directory.rglob("*.*")]
    return "\n".join([*map(str, found), *raw])


async def test_nothing_is_disclosed(
    tmp_path: Path,
    small_world: NtfWorld,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG, "heliograph")
    world = small_world
    world.settings = replace(SETTINGS, subscriber=replace(SETTINGS.subscriber, use_service=True))
    await world.restart_ntf()
    phone = await world.registered()
    first_device = phone.device
    queues = await world.queues(4)
    for queue in queues:
        await phone.subscribe(queue)
    await world.send(*queues)
    await phone.notified_of(*queues)
    # All kinds of trouble.
    world.apns.play(
        ScriptRule(act=Act.RESET, times=2),
        ScriptRule(act=Act.GOAWAY, times=1),
        ScriptRule(status=403, reason="InvalidProviderToken", times=1),
        ScriptRule(status=429, times=1),
    )
    await world.send(queues[0])
    await phone.notified_of(queues[0])
    receive, failures = receiving.receive, [DatabaseError("lost"), RuntimeError("a bug")]

    def failing(*arguments: object, **options: bool) -> receiving.StoredBatch:
        if failures:
            raise failures.pop()
        return receive(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(receiving, "receive", failing)
    await world.send(queues[0])
    await phone.notified_of(queues[0])
    await phone.ask(ntf.TCHK(), b"unknown")
    await phone.ask(ntf.TVFY(b"wrong"), phone.token_id)
    await queues[1].delete(world.sender)
    other = await world.smp.connect()
    assert await queues[2].nsub(other) == smp.SOK()
    await phone.until_state(phone.subscriptions[2], SubscriptionState.END)
    await world.restart_smp()
    [service] = world.smp.router.services.values()
    service.toggle(b"drift", 1)
    await world.restart_ntf(phone)
    await phone.until_state(phone.subscriptions[3], SubscriptionState.ACTIVE)
    await phone.trpl(a_device())
    code = await phone.code()
    await phone.tvfy(code)
    await phone.ask(ntf.TCRN(20), phone.token_id)
    world.apns.play(ScriptRule(status=410, reason="Unregistered"))
    await world.send(queues[3])
    await until(lambda: any(event.kind == "token_invalid" for event in world.events))
    world.apns.play()
    await phone.ask(ntf.TDEL(), phone.token_id)
    await world.restart_ntf()
    await asyncio.sleep(0.05)

    ours = [record for record in caplog.records if record.name.startswith("heliograph.ntf")]
    assert len(ours) > 3
    kinds = {event.kind for event in world.events}
    assert kinds >= {
        "token_registered",
        "token_verification_queued",
        "token_periodic",
        "token_active",
        "token_replaced",
        "token_deleted",
        "token_invalid",
        "subscription_created",
        "subscription_status",
        "nmsg_received",
        "nmsg_stored",
        "push_pending",
        "push_attempted",
        "push_accepted",
        "push_rejected",
        "push_retried",
        "smp_up",
        "smp_down",
        "smp_subscribed",
        "smp_drift",
        "commands_counted",
        "client_connected",
        "router_started",
        "router_recovered",
        "router_stopped",
    }
    formatter = logging.Formatter()
    reported = {
        "logs": "\n".join(formatter.format(record) for record in ours),
        "journal": "\n".join(json.dumps(asdict(event)) for event in world.events),
    }
    reported["segments"] = written(tmp_path / "segments", world)
    secrets = [*secrets_of(phone, queues, first_device), *forms(code), *forms(KEY)]
    for where, text in reported.items():
        for secret in secrets:
            assert secret not in text, where


def test_records_do_not_show_what_they_hold() -> None:
    secret = b"secret" * 4
    token = Token(b"id", a_device(), TokenStatus.ACTIVE, b"", secret, secret, secret)
    status = NtfSubStatus(SubscriptionState.ACTIVE)
    subscription = Subscription(b"id", b"id", 1, b"id", secret, status)
    client = ClientState(secret, "secret")
    for record in (token, subscription, client):
        assert "secret" not in repr(record)
