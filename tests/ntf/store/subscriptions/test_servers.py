from heliograph.db.dialects import Transaction
from heliograph.ntf.store.subscriptions import servers, subscriptions
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from tests.ntf.store.subscriptions.test_subscriptions import (
    ADDRESS,
    OTHER,
    add,
    an_active_token,
    new,
)


def test_servers_are_those_with_anything_to_subscribe_to(tx: Transaction) -> None:
    token = an_active_token(tx)
    first, second = new(token), new(token, OTHER)
    assert add(tx, first).server.server_id == 1
    assert add(tx, second).server.server_id == 2
    assert servers.in_use(tx) == [ServerRecord(1, ADDRESS), ServerRecord(2, OTHER)]
    subscriptions.delete(tx, first.subscription_id)
    assert servers.in_use(tx) == [ServerRecord(2, OTHER)]
    assert servers.find(tx, 1) == ServerRecord(1, ADDRESS)


def test_unused_messaging_routers_are_removed_after_a_time(tx: Transaction) -> None:
    """With them go our service identities there."""

    def left() -> list[int]:
        return [server_id for (server_id,) in tx.query("SELECT server_id FROM servers")]

    token = an_active_token(tx)
    used = add(tx, new(token))
    unused = servers.find_or_add(tx, "smp://AAAA@unused.example.com")
    servers.set_service(tx, unused, b"chain", b"key", b"id")
    servers.collect_unused(tx, now=1_000, before=0)
    again = add(tx, new(token, "smp://AAAA@unused.example.com"))
    servers.collect_unused(tx, now=2_000, before=1_500)
    assert unused in left()  # it was used meanwhile
    subscriptions.delete(tx, again.subscription.subscription_id)
    servers.collect_unused(tx, now=3_000, before=2_500)
    assert unused in left()
    servers.collect_unused(tx, now=4_000, before=3_000)
    assert left() == [used.server.server_id]
