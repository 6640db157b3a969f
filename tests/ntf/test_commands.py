"""What the router answers: credentials, errors, batches, versions, limits."""

import asyncio
import os
import time
from dataclasses import replace
from typing import Any

import pytest

from heliograph.crypto.authorization import authorize
from heliograph.crypto.keys import generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf.limits import NtfLimits
from heliograph.ntf.router import NtfRouter, NtfSettings
from heliograph.ntf.store import tokens, wakeups
from heliograph.ntf.store.store import NtfStore
from heliograph.ntf.store.subscriptions import subscriptions
from heliograph.runtime.limits import RateLimit
from heliograph.transport import server
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.protocols import NTF, SMP
from heliograph.transport.server import Limits, Listener
from heliograph.wire import ntf
from heliograph.wire.addresses import (
    Host,
    HostKind,
    Scheme,
    ServerAddress,
    SMPQueueNtf,
    decode_host,
)
from heliograph.wire.errors import ErrorCode, ErrorType
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    FcmDeviceToken,
    InvalidReason,
    PushProvider,
    SubscriptionState,
    TokenStatus,
)
from heliograph.wire.transmissions import authorized_bytes, encode_transmission
from tests.keys import fixed_bytes
from tests.ntf.support import (
    AUTH,
    OK,
    QUOTA,
    SETTINGS,
    NtfWorld,
    Phone,
    Recorder,
    a_device,
    ask,
    ask_many,
)
from tests.smp.support import identity
from tests.waiting import eventually, until

NO_AUTH = ntf.ERR(ErrorCode.CMD_NO_AUTH)
HAS_AUTH = ntf.ERR(ErrorCode.CMD_HAS_AUTH)
SYNTAX = ntf.ERR(ErrorCode.CMD_SYNTAX)
PROHIBITED = ntf.ERR(ErrorCode.CMD_PROHIBITED)
INTERNAL = ntf.ERR(ErrorCode.INTERNAL)
ADDRESS = ServerAddress(Scheme.SMP, (decode_host("192.0.2.1"),), "", fixed_bytes("smp"))


def error(code: ErrorType) -> ntf.ERR:
    return ntf.ERR(code)


async def send_raw(
    client: Client, data: bytes, *, entity_id: bytes = b"", key: bytes | None = None
) -> Any:
    """The answer to a command of these bytes, whatever they are."""
    established, corr_id = client.established, os.urandom(24)
    session = established.session
    auth = b""
    if key is not None:
        authorized = authorized_bytes(session, corr_id, entity_id, data)
        auth = authorize(key, established.peer_key, corr_id, authorized)
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection = client._connection  # a client itself sends only what it can encode
    connection._on_push = lambda _, message: answered.set_result(message)
    connection.send([encode_transmission(session, corr_id, entity_id, data, auth)])
    async with asyncio.timeout(30):
        return await answered


# Credentials.


async def test_credentials_of_every_command(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    key, entity = phone.keys.private, phone.token_id
    queue = SMPQueueNtf(ADDRESS, os.urandom(24))
    tnew = ntf.TNEW(a_device(), phone.keys.public, phone.dh_keys.public)
    snew = ntf.SNEW(phone.token_id, queue, key)
    client = phone.client
    for command in (tnew, snew):
        assert await ask(client, command, b"", None) == NO_AUTH
        assert await ask(client, command, entity, key) == HAS_AUTH
        assert await ask(client, command, entity, None) == NO_AUTH
    for with_entity in (
        ntf.TVFY(b"code"),
        ntf.TCHK(),
        ntf.TRPL(a_device()),
        ntf.TDEL(),
        ntf.TCRN(20),
        ntf.SCHK(),
        ntf.SDEL(),
    ):
        assert await ask(client, with_entity, b"", key) == NO_AUTH
        assert await ask(client, with_entity, entity, None) == NO_AUTH
        assert await ask(client, with_entity, b"", None) == NO_AUTH
    for entity_id, auth in ((entity, None), (b"", key), (entity, key)):
        assert await ask(client, ntf.PING(), entity_id, auth) == HAS_AUTH
    assert await ask(client, ntf.PING(), b"", None) == ntf.PONG()
    assert await phone.tchk() is TokenStatus.ACTIVE


# Errors.


async def test_malformed_commands(small_world: NtfWorld) -> None:
    client = await small_world.connect()
    key = generate_key_pair(Algorithm.ED25519)
    cases: list[tuple[bytes, bytes, ErrorType]] = [
        (b"HELLO", b"", ErrorCode.CMD_UNKNOWN),
        (b"", b"", ErrorCode.CMD_UNKNOWN),
        (b"TNEW", b"", ErrorCode.CMD_SYNTAX),
        (b"TNEW T", b"", ErrorCode.CMD_SYNTAX),
        (b"TNEW TXX\x02ab", b"", ErrorCode.CMD_SYNTAX),
        (b"TCHK 1", b"1234", ErrorCode.CMD_SYNTAX),
        (b"TCRN \x00", b"1234", ErrorCode.CMD_SYNTAX),
        (b"TCRN \x00\x14\x00", b"1234", ErrorCode.CMD_SYNTAX),
        (b"SNEW S\x01t", b"", ErrorCode.CMD_SYNTAX),
    ]
    for data, entity_id, expected in cases:
        assert await send_raw(client, data, entity_id=entity_id, key=key.private) == error(expected)
    assert await ask(client, ntf.PING(), b"", None) == ntf.PONG()


async def test_a_weak_dh_key_is_refused(small_world: NtfWorld) -> None:
    phone = await small_world.phone()
    weak = phone.dh_keys.public[:12] + bytes(32)
    command = ntf.TNEW(phone.device, phone.keys.public, weak)
    assert await phone.ask(command) == error(ErrorCode.CRYPTO)


@pytest.mark.parametrize("text", [b"abc", b"xyzw", b"ab cd", b"ab\0d", "ä".encode()])
async def test_an_apns_token_that_is_not_hex_is_refused_by_the_provider(
    small_world: NtfWorld, text: bytes
) -> None:
    """As the reference does; it leaves nothing behind that could not be read again."""
    phone = await small_world.phone(APNSDeviceToken(PushProvider.APNS_TEST, text))
    assert isinstance(await phone.tnew(), ntf.IDTKN)
    invalid = TokenStatus.invalid(InvalidReason.BAD)

    async def is_invalid() -> bool:
        return await phone.tchk() is invalid

    await eventually(is_invalid)
    await small_world.restart_ntf(phone)
    assert await phone.tchk() is invalid
    other = await small_world.registered()
    assert await other.trpl(phone.device) == OK


@pytest.mark.parametrize("port", ["x", "99999", "-1", "0", "1:2", " 1"])
async def test_an_address_that_is_none_is_refused(small_world: NtfWorld, port: str) -> None:
    """It must not keep the router from its other messaging routers after a restart."""
    phone = await small_world.registered()
    subscription = await phone.subscribe(await small_world.queue())
    queue = SMPQueueNtf(replace(ADDRESS, port=port), os.urandom(24))
    snew = ntf.SNEW(phone.token_id, queue, generate_key_pair(Algorithm.X25519).private)
    assert await phone.ask(snew) == SYNTAX
    no_fingerprint = SMPQueueNtf(replace(ADDRESS, fingerprint=b""), os.urandom(24))
    assert await phone.ask(replace(snew, queue=no_fingerprint)) == SYNTAX
    await small_world.restart_ntf(phone)
    await phone.until_state(subscription, SubscriptionState.ACTIVE)


@pytest.mark.parametrize("host", ["smp\0.example", "smp\x1b.example", "sm\u1e57.example"])
async def test_a_host_that_is_none_is_refused(world: NtfWorld, host: str) -> None:
    """It can be said on the wire, but PostgreSQL may not take it, nor any resolver."""
    phone = await world.registered()
    address = replace(ADDRESS, hosts=(Host(HostKind.DOMAIN, host),))
    key = generate_key_pair(Algorithm.X25519).private
    assert await phone.ask(ntf.SNEW(phone.token_id, SMPQueueNtf(address, b"n"), key)) == SYNTAX


async def test_a_messaging_router_at_an_ipv6_address(small_world: NtfWorld) -> None:
    """Its host has colons like the one before its port."""
    side = small_world.smp
    listener = Listener(SMP, identity(), side.router, limits=side.limits)
    try:
        port = await listener.start("::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    address = replace(side.address, hosts=(decode_host("::1"),), port=str(port))
    phone = await small_world.registered()
    queue = await small_world.queue()
    assert queue.notifier is not None
    named = SMPQueueNtf(address, queue.notifier_id)
    answer = await phone.ask(ntf.SNEW(phone.token_id, named, queue.notifier.auth.private))
    await phone.until_state(answer.subscription_id, SubscriptionState.ACTIVE)
    await small_world.restart_ntf(phone)
    await phone.until_state(answer.subscription_id, SubscriptionState.ACTIVE)
    small_world.apns.skip(phone.device)
    await small_world.send(queue)
    assert [item.queue for item in await phone.notified()] == [named]
    await listener.close()


async def test_an_address_in_the_store_that_is_none_is_skipped(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    subscription = await phone.subscribe(await small_world.queue())
    other = await phone.snew(await small_world.queue())

    def spoil(tx: Transaction) -> None:
        tx.execute("INSERT INTO servers (server_id, address) VALUES (0, 'nonsense')")
        tx.execute(
            "UPDATE subscriptions SET server_id = 0 WHERE subscription_id = ?",
            (other.subscription_id,),
        )

    await small_world.router.store.database.write(spoil)
    await small_world.restart_ntf(phone)
    await phone.until_state(subscription, SubscriptionState.ACTIVE)


async def test_test_tokens_are_refused_unless_enabled(small_world: NtfWorld) -> None:
    await small_world.stop_ntf()
    start = NtfRouter.start

    async def without_test(url: str, providers: dict[PushProvider, Any], *rest: Any) -> NtfRouter:
        providers.pop(PushProvider.APNS_TEST)
        return await start(url, providers, *rest)

    NtfRouter.start = without_test  # type: ignore[method-assign, assignment]
    try:
        await small_world.start_ntf()
    finally:
        NtfRouter.start = start  # type: ignore[method-assign]
    refused = await small_world.phone(a_device(PushProvider.APNS_TEST))
    assert await refused.tnew() == PROHIBITED
    fcm = ntf.TNEW(FcmDeviceToken("token"), refused.keys.public, refused.dh_keys.public)
    assert await refused.ask(fcm) == PROHIBITED
    allowed = await small_world.registered(a_device(PushProvider.APNS_PROD))
    assert await allowed.trpl(a_device(PushProvider.APNS_TEST)) == PROHIBITED
    assert await allowed.tchk() is TokenStatus.ACTIVE


async def test_a_store_that_fails_is_an_internal_error(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the commands that needed it; and the connection stays."""
    phone = await small_world.registered()
    queue = await small_world.queue()

    def failing(*_: object, **__: object) -> Any:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(tokens, "verify", failing)
    monkeypatch.setattr(subscriptions, "add_many", failing)
    key, entity = phone.keys.private, phone.token_id
    assert queue.notifier is not None
    named = SMPQueueNtf(small_world.smp.address, queue.notifier_id)
    answers = await ask_many(
        phone.client,
        [
            ClientRequest(ntf.TVFY(b"code"), entity, key),
            ClientRequest(ntf.TCHK(), entity, key),
            ClientRequest(ntf.SNEW(entity, named, queue.notifier.auth.private), b"", key),
        ],
    )
    assert answers == [INTERNAL, ntf.TKN(TokenStatus.ACTIVE), INTERNAL]
    monkeypatch.setattr(NtfStore, "load", failing)
    assert await phone.ask(ntf.TCHK(), os.urandom(24)) == INTERNAL
    monkeypatch.undo()
    await phone.subscribe(queue)


async def test_a_bug_is_an_internal_error(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    phone = await small_world.registered()

    def failing(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(wakeups, "request_cron", failing)
    assert await phone.ask(ntf.TCRN(20), phone.token_id) == INTERNAL
    assert "commands failed in an unexpected way" in caplog.text
    assert await phone.tchk() is TokenStatus.ACTIVE


# Order and batches.


async def test_commands_of_a_batch_are_executed_in_order(small_world: NtfWorld) -> None:
    phone = await small_world.phone()
    await phone.tnew()
    code = await phone.code()
    key, entity = phone.keys.private, phone.token_id
    await phone.until_status(TokenStatus.CONFIRMED)
    device = a_device()
    answers = await ask_many(
        phone.client,
        [
            ClientRequest(command, entity, key)
            for command in (
                ntf.TCHK(),
                ntf.TVFY(b"wrong"),
                ntf.TVFY(code),
                ntf.TCHK(),
                ntf.TRPL(device),
                ntf.TCHK(),
                ntf.TVFY(code),
                ntf.TDEL(),
                ntf.TCHK(),
            )
        ],
    )
    assert answers[:5] == [
        ntf.TKN(TokenStatus.CONFIRMED),
        AUTH,
        OK,
        ntf.TKN(TokenStatus.ACTIVE),
        OK,
    ]
    assert answers[5].status in (TokenStatus.REGISTERED, TokenStatus.CONFIRMED)
    assert answers[6:] == [AUTH, OK, AUTH]


async def test_a_deleted_subscription_is_gone_for_the_rest_of_its_batch(
    small_world: NtfWorld,
) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription = await phone.subscribe(queue)
    key = phone.keys.private
    assert queue.notifier is not None
    named = SMPQueueNtf(small_world.smp.address, queue.notifier_id)
    snew = ntf.SNEW(phone.token_id, named, queue.notifier.auth.private)
    answers = await ask_many(
        phone.client,
        [
            ClientRequest(ntf.SDEL(), subscription, key),
            ClientRequest(ntf.SCHK(), subscription, key),
            ClientRequest(ntf.SDEL(), subscription, key),
            ClientRequest(snew, b"", key),
            ClientRequest(snew, b"", key),
        ],
    )
    assert answers[:3] == [OK, AUTH, AUTH]
    assert answers[3] == answers[4]
    assert answers[3] != ntf.IDSUB(subscription)
    await phone.until_state(answers[3].subscription_id, SubscriptionState.ACTIVE)


async def test_commands_sent_one_after_another_are_answered_in_order(
    small_world: NtfWorld,
) -> None:
    """Also when some need the store and others do not."""
    phone = await small_world.registered()
    key, entity = phone.keys.private, phone.token_id
    subscription = await phone.subscribe(await small_world.queue())
    order: list[int] = []
    pending = []
    for number in range(30):
        command, of = [
            (ntf.TCRN(20), entity),
            (ntf.PING(), b""),
            (ntf.TCHK(), entity),
            (ntf.SCHK(), subscription),
        ][number % 4]
        asking = asyncio.ensure_future(phone.client.request(command, of, key if of else None))
        asking.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
        pending.append(asking)
        await asyncio.sleep(0)
    await asyncio.gather(*pending)
    assert order == sorted(order)


async def test_large_batches_in_and_out(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    requests = [ClientRequest(ntf.TCHK(), phone.token_id, phone.keys.private)] * 500
    assert await ask_many(phone.client, requests) == [ntf.TKN(TokenStatus.ACTIVE)] * 500
    pings = [ClientRequest(ntf.PING())] * 500
    assert await ask_many(phone.client, pings) == [ntf.PONG()] * 500


async def test_version_1_has_no_batches(small_world: NtfWorld) -> None:
    client = await small_world.connect(1, use_alpn=False)
    phone = await small_world.phone(client=client, algorithm=Algorithm.ED25519)
    await phone.register()
    requests = [ClientRequest(ntf.TCHK(), phone.token_id, phone.keys.private)] * 20
    assert await ask_many(client, requests) == [ntf.TKN(TokenStatus.ACTIVE)] * 20


async def test_a_foreign_session_is_refused_in_version_1(small_world: NtfWorld) -> None:
    client = await small_world.connect(1, use_alpn=False)
    session = replace(client.established.session, session_id=os.urandom(32))
    data = NTF.commands.encode(ntf.PING(), 1)
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection = client._connection  # a client itself sends only for its own session
    connection._on_push = lambda _, message: answered.set_result(message)
    connection.send([encode_transmission(session, os.urandom(24), b"", data, b"")])
    async with asyncio.timeout(30):
        assert await answered == error(ErrorCode.SESSION)
    assert await ask(client, ntf.PING(), b"", None) == ntf.PONG()


async def test_a_client_that_goes_away_in_the_middle(small_world: NtfWorld) -> None:
    """What it asked for is done or not, and nobody else notices."""
    phone = await small_world.registered()
    for _ in range(5):
        other = await small_world.phone()
        pending = [asyncio.create_task(other.tnew()) for _ in range(5)]
        await asyncio.sleep(0)
        other.client.abort()
        await asyncio.gather(*pending, return_exceptions=True)
    assert await phone.tchk() is TokenStatus.ACTIVE
    await until(lambda: len(small_world.router.clients) == 1)


# Limits.


class TestLimits:
    @pytest.fixture
    def settings(self) -> NtfSettings:
        limits = NtfLimits(RateLimit(3), 2, RateLimit(40))
        return replace(SETTINGS, limits=limits)

    async def test_beyond_them_the_answer_is_quota(self, small_world: NtfWorld) -> None:
        phone = await small_world.registered()
        queues = await small_world.queues(3)
        answers = [await phone.snew(queue) for queue in queues]
        assert [type(answer) for answer in answers[:2]] == [ntf.IDSUB, ntf.IDSUB]
        assert answers[2] == QUOTA
        assert await phone.snew(queues[0]) == answers[0]  # not a new one
        assert await phone.ask(ntf.SDEL(), answers[0].subscription_id) == OK
        assert isinstance(await phone.snew(queues[2]), ntf.IDSUB)
        for _ in range(2):
            other = await small_world.phone()
            assert isinstance(await other.tnew(), ntf.IDTKN)
        assert await (await small_world.phone()).tnew() == QUOTA
        assert await phone.trpl(a_device()) == QUOTA  # it has a push sent, too
        fresh = await small_world.connect()
        requests = [ClientRequest(ntf.TCHK(), phone.token_id, phone.keys.private)] * 400
        answers = await ask_many(fresh, requests)
        assert answers[:40] == [ntf.TKN(TokenStatus.ACTIVE)] * 40
        assert QUOTA in answers
        assert await ask(fresh, ntf.PING(), b"", None) == ntf.PONG()
        refused = small_world.router.stats.quota_exceeded
        assert refused == {"subscriptions": 1, "new_tokens": 2, "commands": answers.count(QUOTA)}

    @pytest.mark.parametrize("is_busy", [False, True])
    async def test_beyond_them_a_connection_is_read_slowly(
        self, small_world: NtfWorld, is_busy: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither PONG nor QUOTA takes long: others would wait for a flood of either."""
        monkeypatch.setattr(server, "THROTTLE_SECONDS", 0.3)
        small_world.listener.limits = Limits(max_unanswered=100)
        phone = await small_world.registered()
        check = ClientRequest(ntf.TCHK(), phone.token_id, phone.keys.private)
        fresh = await small_world.connect()
        slow = [ClientRequest(ntf.TCHK(), os.urandom(24), phone.keys.private)] * is_busy
        started = time.monotonic()
        answers = await ask_many(fresh, [*slow, *[ClientRequest(ntf.PING())] * 500])
        assert answers[-500:] == [ntf.PONG()] * 500
        answers = await ask_many(fresh, [*slow, *[check] * 500])
        assert answers.count(QUOTA) > 300
        assert time.monotonic() - started > 1.5
        assert await ask(fresh, ntf.PING(), b"", None) == ntf.PONG()


# Many at once.


@pytest.mark.timeout(30)
async def test_many_connections_subscribe_at_once(world: NtfWorld) -> None:
    """20 of them deadlock the reference for good."""
    count, each = 24, 5
    phones: list[Phone] = await asyncio.gather(*(world.registered() for _ in range(count)))
    queues = [await world.queues(each) for _ in range(count)]

    async def subscribe(phone: Phone, own: list[Any]) -> None:
        answers = await asyncio.gather(*(phone.snew(queue) for queue in own))
        assert all(isinstance(answer, ntf.IDSUB) for answer in answers)
        for answer in answers:
            await phone.until_state(answer.subscription_id, SubscriptionState.ACTIVE)

    async with asyncio.timeout(20):
        await asyncio.gather(*map(subscribe, phones, queues))
    await world.send(*(queue for own in queues for queue in own))
    await asyncio.gather(
        *(phone.notified_of(*own) for phone, own in zip(phones, queues, strict=True))
    )


async def test_the_same_registration_on_many_connections(world: NtfWorld) -> None:
    phone = await world.phone()
    clients = [await world.connect() for _ in range(10)]
    command = ntf.TNEW(phone.device, phone.keys.public, phone.dh_keys.public)
    answers = await asyncio.gather(
        *(ask(client, command, b"", phone.keys.private) for client in clients)
    )
    assert len(set(answers)) == 1
    [[count]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM tokens"))
    assert count == 1


async def test_a_token_deleted_while_it_subscribes_leaves_nothing(world: NtfWorld) -> None:
    """A subscription of no token would keep its queue from everybody else."""
    for _ in range(5):
        phone = await world.registered()
        other = await world.connect()
        queues = await world.queues(6)
        commands = [phone.snew(queue) for queue in queues]
        delete = ask(other, ntf.TDEL(), phone.token_id, phone.keys.private)
        await asyncio.gather(*commands[:3], delete, *commands[3:])
        [[left]] = await world.read(
            lambda tx, phone=phone: tx.query(  # type: ignore[misc]
                "SELECT COUNT(*) FROM subscriptions WHERE token_id = ?", (phone.token_id,)
            )
        )
        assert left == 0


async def test_registrations_under_a_dead_provider(small_world: NtfWorld) -> None:
    """Answers do not wait for pushes."""
    small_world.providers[PushProvider.APNS_PROD] = provider = Recorder()
    provider.gate.clear()
    await small_world.restart_ntf()
    phones = [await small_world.phone(a_device(PushProvider.APNS_PROD)) for _ in range(5)]
    async with asyncio.timeout(30):
        for phone in phones:
            assert isinstance(await phone.tnew(), ntf.IDTKN)
            assert await phone.tchk() is TokenStatus.REGISTERED
    provider.gate.set()
    for phone in phones:
        await phone.until_status(TokenStatus.CONFIRMED)
