import json
from dataclasses import asdict
from pathlib import Path

from heliograph.db.dialects import Transaction, open_dialect
from heliograph.journal.events import NmsgReceived
from heliograph.journal.hashing import notification_id
from heliograph.journal.identity import journal_identity
from heliograph.journal.storage.writer import JournalWriter
from heliograph.ntf.diagnosis.trace import Trace, describe, hashed_token, read_journal, trace
from heliograph.push.provider import RetryLater
from heliograph.wire.addresses import encode_address
from heliograph.wire.ntf.tokens import PushProvider
from heliograph.wire.primitives import b64encode
from tests.ntf.support import NtfWorld, Phone, Recorder, a_device
from tests.waiting import until


def traced(url: str, token_id: bytes) -> Trace | None:
    """As the command does: from outside, while the router runs."""
    dialect = open_dialect(url, read_only=True)
    try:
        return trace(Transaction(dialect), token_id)
    finally:
        dialect.close()


def secrets_of(phone: Phone, world: NtfWorld) -> list[str]:
    return [
        phone.device.token.decode(),
        b64encode(phone.secret),
        encode_address(world.smp.address),
        "127.0.0.1",
    ]


async def test_a_token_that_is_well(world: NtfWorld) -> None:
    phone = await world.registered()
    queues = await world.queues(2)
    for queue in queues:
        await phone.subscribe(queue)
    world.apns.skip(phone.device)
    await world.send(*queues)
    await phone.notified_of(*queues)
    await world.until_none_pending()
    found = traced(world.url, phone.token_id)
    assert found is not None
    assert (found.status, found.provider) == ("ACTIVE", "apns_test")
    assert found.subscriptions == {"ACTIVE": 2}
    assert found.pending_pushes == []
    hashes = {event.notification for event in world.events if event.kind == "nmsg_received"}
    assert {item.notification for item in found.notified} == hashes
    text = "\n".join(describe(found, found.created_at + 90))
    assert "pending         nothing" in text
    assert "registered      2" in text
    assert "(2 min ago)" in text or "(90 s ago)" in text
    for secret in secrets_of(phone, world):
        assert secret not in text + json.dumps(asdict(found))


async def test_a_token_with_a_pending_push(sqlite_url: str, tmp_path: Path) -> None:
    provider = Recorder()
    provider.always = RetryLater(60.0, "ServiceUnavailable")
    world = NtfWorld(sqlite_url, tmp_path)
    world.providers = {PushProvider.APNS_TEST: provider}
    await world.start()
    phone = await world.phone(a_device())
    await phone.tnew()

    def is_retried() -> object:
        found = traced(sqlite_url, phone.token_id)
        return found is not None and found.pending_pushes and found.pending_pushes[0].attempts

    await until(is_retried)
    found = traced(sqlite_url, phone.token_id)
    assert found is not None
    [push] = found.pending_pushes
    assert (push.kind, push.attempts) == ("verification", 1)
    assert push.since + 59 < push.next_at < push.expires_at
    text = "\n".join(describe(found, push.since))
    assert "pending         a verification push" in text
    assert "failed 1 times" in text
    assert "next attempt" in text
    await world.stop()


def test_nobody(tx: Transaction) -> None:
    assert trace(tx, bytes(24)) is None


async def test_with_the_journal(small_world: NtfWorld, tmp_path: Path) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    small_world.apns.skip(phone.device)
    await small_world.send(queue)
    [message] = await phone.notified()
    await small_world.until_none_pending()
    journal = tmp_path / "journal"
    writer = JournalWriter(journal, journal_identity(tmp_path), "ntf")
    small_world.journal.replay(writer)
    writer.record(NmsgReceived(notification=b"another's", own_server=False))
    writer.close()
    found = traced(small_world.url, phone.token_id)
    assert found is not None
    found = read_journal(found, journal, hashed_token(tmp_path, phone.token_id))
    kinds = [event["kind"] for event in found.events]
    assert kinds[0] == "token_registered"
    assert kinds[-1] == "push_accepted"
    assert {"nmsg_received", "nmsg_stored", "push_pending", "push_attempted"} < {*kinds}
    expected = notification_id(message.nonce)
    assert {item for event in found.events if (item := event.get("notification"))} == {expected}
    assert found.events[-1]["notifications"] == [expected]
    assert "journal         " in "\n".join(describe(found, 0))


async def test_with_the_journal_before_any_notification(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phone = await small_world.registered()
    journal = tmp_path / "journal"
    writer = JournalWriter(journal, journal_identity(tmp_path), "ntf")
    small_world.journal.replay(writer)
    writer.close()
    found = traced(small_world.url, phone.token_id)
    assert found is not None
    found = read_journal(found, journal, hashed_token(tmp_path, phone.token_id))
    assert {"token_registered", "token_active"} <= {event["kind"] for event in found.events}
