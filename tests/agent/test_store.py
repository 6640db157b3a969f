"""The store: passphrases, two at once, what it contains."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from heliograph.agent.connections import queues
from heliograph.agent.connections.servers import addresses, server_for
from heliograph.agent.errors import (
    AgentError,
    NotEncrypted,
    PassphraseNeeded,
    WrongPassphrase,
)
from heliograph.agent.messages import store as messages
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.records import NtfToken
from heliograph.agent.records import NotifierCredentials, RcvStatus
from heliograph.agent.store import FILE, AgentStore
from heliograph.crypto.keys import generate_key_pair
from heliograph.db.database import Migration, migrate
from heliograph.db.dialects import Transaction
from heliograph.wire.addresses import decode_address
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import APNSDeviceToken, NotificationsMode, PushProvider
from tests.agent.places import BOTH_STORES, place_of, stored_bytes
from tests.agent.support import CHEAP

ADDRESS = decode_address("smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@one.example:5223")
MOVED = decode_address(
    "smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@two.example,three.example"
)


def a_queue(number: int = 1, notifier: NotifierCredentials | None = None) -> queues.NewRcvQueue:
    return queues.NewRcvQueue(
        ADDRESS,
        b"rcv%d" % number,
        b"snd%d" % number,
        b"recipient key!!",
        b"router secret!!",
        b"e2e private key",
        True,
        notifier,
    )


async def test_it_is_made_and_opened_again(tmp_path: Path) -> None:
    store = await AgentStore.open(tmp_path / "phone")
    await store.write(lambda tx: queues.add_connection(tx, "c1", 5))
    await store.close()
    store = await AgentStore.open(tmp_path / "phone")
    assert [item.conn_id for item in await store.read(queues.connections)] == ["c1"]
    await store.close()
    assert (tmp_path / "phone" / FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("made", "opened", "error"),
    [
        ("right", "wrong", WrongPassphrase),
        ("right", None, PassphraseNeeded),
        (None, "any", NotEncrypted),
        (None, "", AgentError),
    ],
)
async def test_a_wrong_passphrase_does_no_harm(
    place: Path | str, made: str | None, opened: str | None, error: type[AgentError]
) -> None:
    await (await AgentStore.open(place, made, cost=CHEAP)).close()
    with pytest.raises(error):
        await AgentStore.open(place, opened, cost=CHEAP)
    await (await AgentStore.open(place, made, cost=CHEAP)).close()


@BOTH_STORES
async def test_keys_are_not_in_the_store(tmp_path: Path) -> None:
    secrets = (b"recipient key!!", b"router secret!!", b"e2e private key", b"notifier secret")
    for name, passphrase in (("open", None), ("sealed", "a passphrase")):
        store = await AgentStore.open(place_of(tmp_path / name), passphrase, cost=CHEAP)
        vault = store.vault
        notifier = NotifierCredentials(b"nid", b"notifier key", b"notifier secret")

        def fill(tx: object, vault: object = vault, notifier: object = notifier) -> None:
            queues.add_connection(tx, "c1", 5)  # type: ignore[arg-type]
            queues.add_rcv_queue(tx, vault, "c1", a_queue(1, notifier))  # type: ignore[arg-type]

        await store.write(fill)
        [queue] = await store.read(lambda tx, v=vault: queues.rcv_queues_of(tx, v, ["c1"]))  # type: ignore[misc]
        assert queue.recipient_key == b"recipient key!!"
        assert queue.notifier == notifier
        await store.close()
        data = stored_bytes(tmp_path / name)
        assert all((secret in data) == (passphrase is None) for secret in secrets)


async def test_two_may_open_a_new_one_at_once(place: Path | str) -> None:
    stores = await asyncio.gather(*[AgentStore.open(place, "x", cost=CHEAP) for _ in range(4)])
    sealed = stores[0].vault.seal(b"key")
    assert all(store.vault.open(sealed) == b"key" for store in stores)
    await asyncio.gather(*[store.close() for store in stores])


async def test_a_writer_waits_for_the_other(tmp_path: Path) -> None:
    store = await AgentStore.open(tmp_path)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.ensure_future(store.write(lambda tx: queues.add_connection(tx, "c1", 5)))
    await asyncio.sleep(0.1)
    assert not writing.done()
    other.execute("COMMIT")
    other.close()
    await writing
    await store.close()


async def test_it_is_noticed_that_another_has_written(place: Path | str) -> None:
    store, other = await AgentStore.open(place), await AgentStore.open(place)
    before = await store.data_version()
    assert await store.data_version() == before
    await other.write(lambda tx: queues.add_connection(tx, "c1", 5))
    assert await store.data_version() != before
    await store.close()
    await other.close()


async def test_a_later_version_is_refused(tmp_path: Path) -> None:
    migrate(
        f"sqlite:///{tmp_path / FILE}", [Migration("9999_later", "CREATE TABLE later (x TEXT)")]
    )
    with pytest.raises(AgentError, match="later version"):
        await AgentStore.open(tmp_path)


async def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database, by any means" * 100)
    with pytest.raises(AgentError, match="not a database") as caught:
        await AgentStore.open(tmp_path)
    assert str(caught.value).count(FILE) == 1


async def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match=r"Not a directory|File exists"):
        await AgentStore.open(tmp_path / "file" / "within")


async def test_a_closed_store_says_so(place: Path | str) -> None:
    store = await AgentStore.open(place)
    await store.close()
    with pytest.raises(AgentError, match="closed"):
        await store.read(queues.connections)


async def test_a_router_moves_only_if_its_owner_says_so(place: Path | str) -> None:
    store = await AgentStore.open(place)
    server_id = await store.write(lambda tx: server_for(tx, ADDRESS))
    assert await store.write(lambda tx: server_for(tx, MOVED)) == server_id
    assert await store.read(addresses) == [ADDRESS]
    assert await store.write(lambda tx: server_for(tx, MOVED, trusted=True)) == server_id
    assert await store.read(addresses) == [MOVED]
    await store.close()


async def test_an_ipv6_address_with_a_port_comes_back(place: Path | str) -> None:
    smp = decode_address("smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@[::1]:5223")
    ntf = decode_address("ntf://BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=@[2001:db8::7]:443")
    store = await AgentStore.open(place)
    await store.write(lambda tx: server_for(tx, smp))
    assert await store.read(addresses) == [smp]
    keys = generate_key_pair(Algorithm.X25519)
    device = APNSDeviceToken(PushProvider.APNS_TEST, b"ab")
    token = NtfToken(device, ntf, keys, keys, NotificationsMode.INSTANT)
    await store.write(lambda tx: ntf_store.save_token(tx, store.vault, token))
    found = await store.read(lambda tx: ntf_store.load_token(tx, store.vault))
    assert found is not None
    assert found.ntf_address == ntf
    await store.close()


async def test_the_last_messages_are_remembered_whatever_the_clock_says(place: Path | str) -> None:
    store = await AgentStore.open(place)
    vault = store.vault

    def fill(tx: Transaction) -> None:
        for conn_id, count in (("c1", 150), ("c2", 3)):
            queues.add_connection(tx, conn_id, 0)
            for number in range(1, count + 1):
                body = b"unhandled" if number == 2 else None
                messages.add_received(
                    tx, vault, conn_id, 1, b"%s %d" % (conn_id.encode(), number), 0, 1000,
                    number=number, body=body,
                )  # fmt: skip

    await store.write(fill)
    await store.write(lambda tx: messages.forget_handled(tx, 1000))
    assert (await store.read(lambda tx: tx.query("SELECT COUNT(*) FROM received")))[0][0] == 153
    await store.write(lambda tx: messages.forget_handled(tx, 10**15))
    rows = await store.read(lambda tx: tx.query("SELECT conn_id, number FROM received"))
    assert {number for conn_id, number in rows if conn_id == "c1"} == {2, *range(51, 151)}
    assert {number for conn_id, number in rows if conn_id == "c2"} == {1, 2, 3}
    await store.close()


async def test_a_deleted_connection_stays_until_its_queues_are_gone(place: Path | str) -> None:
    store = await AgentStore.open(place)
    vault = store.vault
    await store.write(lambda tx: queues.add_connection(tx, "c1", 5))
    queue_id = await store.write(lambda tx: queues.add_rcv_queue(tx, vault, "c1", a_queue()))
    await store.write(lambda tx: queues.delete_connection(tx, "c1"))
    assert await store.read(queues.connections) == []
    [queue] = await store.read(lambda tx: queues.rcv_queues_to_delete(tx, vault))
    assert (queue.queue_id, queue.status) == (queue_id, RcvStatus.DELETING)
    await store.write(lambda tx: queues.delete_rcv_queue(tx, queue_id))
    await store.write(lambda tx: queues.forget_deleted(tx, "c1"))
    assert await store.read(lambda tx: tx.query("SELECT * FROM connections")) == []
    await store.close()
