"""No key, queue ID or message in logs, in errors, or in what debuggers print."""

import base64
import logging
from pathlib import Path

import pytest

from heliograph.agent.agent import Agent
from heliograph.agent.connections import queues
from heliograph.agent.errors import AgentError
from tests.agent.support import SETTINGS, Router, User, connect

COLUMNS = {
    "rcv_queues": (
        "rcv_id, snd_id, recipient_key, dh_secret, e2e_key, e2e_secret, sender_key,"
        " notifier_id, notifier_key, notifier_secret"
    ),
    "snd_queues": "snd_id, sender_key, e2e_public, e2e_secret",
    "received": "broker_id, body",
    "outgoing": "body",
}


async def secrets_of(user: User) -> set[bytes]:
    found: set[bytes] = set()
    for table, columns in COLUMNS.items():
        query = f"SELECT {columns} FROM {table}"
        rows = await user.agent.store.read(lambda tx, q=query: tx.query(q))  # type: ignore[misc]
        found |= {value for row in rows for value in row if value is not None and len(value) > 8}
    return found


def forms(secret: bytes) -> list[str]:
    """How it might be written."""
    return [
        secret.hex(),
        repr(secret)[2:-1],
        base64.urlsafe_b64encode(secret).decode().rstrip("="),
        base64.b64encode(secret).decode().rstrip("="),
    ]


async def test_logs(
    router: Router, alice: User, bob: User, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    at_alice, at_bob = await connect(alice, bob, router.address)
    await alice.agent.send(at_alice, b"a message for bob")
    await bob.receive(ack=False)
    await router.stop()
    await alice.agent.send(at_alice, b"a message that waits")
    texts = []
    for call in (bob.agent.create_connection(router.address), bob.agent.subscribe(["none"])):
        try:
            texts.append(str(await call))
        except AgentError as exc:
            texts.append(str(exc))
    await router.start()
    await bob.receive(2, ack=False)
    await bob.agent.delete_connection(at_bob)
    third = await Agent.open(tmp_path / "third", passphrase="a long passphrase", settings=SETTINGS)
    await third.close()
    secrets = await secrets_of(alice) | {b"a message for bob", b"a message that waits"}
    secrets.add(b"a long passphrase")
    assert len(secrets) > 10
    texts += [record.getMessage() for record in caplog.records]
    for text in texts:
        assert not any(form in text for secret in secrets for form in forms(secret))


async def test_what_debuggers_print(router: Router, alice: User, bob: User) -> None:
    at_alice, _ = await connect(alice, bob, router.address)
    store = alice.agent.store
    rcv = await store.read(lambda tx: queues.rcv_queues_of(tx, store.vault, [at_alice]))
    snd = await store.read(lambda tx: queues.snd_queues_of(tx, store.vault, at_alice))
    await alice.agent.send(at_alice, b"a message for bob")
    received = await bob.receive_messages()
    secrets = await secrets_of(alice) | await secrets_of(bob)
    text = repr((rcv, snd, received))
    assert not any(form in text for secret in secrets for form in forms(secret))
