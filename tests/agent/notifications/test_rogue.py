"""Routers that answer what makes no sense, or cannot answer just now."""

import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.agent.clients import ClientPool
from heliograph.agent.errors import RouterError
from heliograph.agent.notifications.records import SubAction
from heliograph.agent.notifications.service import Notifications
from heliograph.agent.store import AgentStore
from heliograph.crypto.boxes import box_padded, random_nonce
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.transport.handshake import ServiceRequest
from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.transport.server import Answer, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import ServerAddress, decode_host
from heliograph.wire.errors import STORE, ErrorCode
from heliograph.wire.keys import SPKI_PREFIX, Algorithm
from heliograph.wire.ntf.push import PUSH_SIZE
from heliograph.wire.ntf.tokens import (
    NotificationsMode,
    NtfSubStatus,
    SubscriptionState,
    TokenStatus,
)
from heliograph.wire.requests import Request
from tests.agent.notifications.support import CLIENTS, SETTINGS, TIMEOUT, Rig
from tests.ntf.support import a_device
from tests.smp.support import identity
from tests.waiting import eventually

WEAK = SPKI_PREFIX[Algorithm.X25519] + bytes(32)
INTERNAL = ntf.ERR(ErrorCode.INTERNAL)
QUOTA = ntf.ERR(ErrorCode.QUOTA)
S = SubscriptionState


class Rogue:
    """A router that gives a configured answer to each kind of command."""

    def __init__(self, protocol: AnyProtocol) -> None:
        self.protocol = protocol
        self.keys = generate_key_pair(Algorithm.X25519)
        self.secret = b""
        self.token_id = os.urandom(24)
        self.answers: dict[type, Any] = {}
        self.asked: Counter[type] = Counter()

    def connected(self, connection: ServerConnection) -> None: ...

    def disconnected(self, connection: ServerConnection) -> None: ...

    def writable(self, connection: ServerConnection) -> None: ...

    def service_requested(self, connection: ServerConnection, request: ServiceRequest) -> None: ...

    def may_disconnect(self, connection: ServerConnection) -> bool:
        return True

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        connection.answer(
            [Answer(item.corr_id, item.entity_id, self._answer(item.command)) for item in requests]
        )

    def _answer(self, command: Any) -> Any:
        self.asked[type(command)] += 1
        if type(command) in self.answers:
            return self.answers[type(command)]
        match command:
            case ntf.TNEW():
                self.secret = dh(command.dh_key, self.keys.private)
                return ntf.IDTKN(self.token_id, self.keys.public)
            case ntf.TCHK():
                return ntf.TKN(TokenStatus.ACTIVE)
            case ntf.SNEW():
                return ntf.IDSUB(os.urandom(24))
            case ntf.SCHK():
                return ntf.SUB(NtfSubStatus(S.ACTIVE))
            case smp.NEW():
                return smp.IDS(os.urandom(24), os.urandom(24), self.keys.public)
            case smp.NKEY():
                return smp.NID(os.urandom(24), self.keys.public)
            case _:
                return ntf.OK() if self.protocol is NTF else smp.OK()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[ServerAddress]:
        who = identity(f"rogue {self.protocol.scheme.value} CA")
        listener = Listener(self.protocol, who, self)
        port = await listener.start("127.0.0.1", 0)
        host = decode_host("127.0.0.1")
        try:
            yield ServerAddress(self.protocol.scheme, (host,), str(port), who.fingerprint)
        finally:
            await listener.close()


class Rogues(Rig):
    """An agent between two of them."""

    def __init__(self, directory: Path, ntf_address: ServerAddress, ntf: Rogue, smp: Rogue) -> None:
        world: Any = SimpleNamespace(address=ntf_address)
        super().__init__(directory / "agent", world)
        self.ntf_rogue = ntf
        self.smp_rogue = smp
        self.smp_address: ServerAddress

    async def verify(self) -> TokenStatus:
        nonce = random_nonce()
        return await self.ntf.verify_token(
            nonce, box_padded(self.ntf_rogue.secret, nonce, b"code", PUSH_SIZE)
        )

    @property
    def address(self) -> ServerAddress:
        """As a router has one, for `connect`."""
        return self.smp_address

    async def connected(self) -> str:
        [conn_id] = await self.connect(self)  # type: ignore[arg-type]
        return conn_id

    async def until_asked(self, command: type, times: int = 1) -> None:
        async def is_so() -> bool:
            return self.ntf_rogue.asked[command] + self.smp_rogue.asked[command] >= times

        await eventually(is_so, TIMEOUT)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rogues]:
    ntf_rogue, smp_rogue = Rogue(NTF), Rogue(SMP)
    async with ntf_rogue.listening() as ntf_address, smp_rogue.listening() as smp_address:
        running = Rogues(tmp_path, ntf_address, ntf_rogue, smp_rogue)
        running.smp_address = smp_address
        await running.open()
        try:
            yield running
        finally:
            await running.close()


@pytest.mark.parametrize(
    "answer", [ntf.OK(), ntf.TKN(TokenStatus.ACTIVE), ntf.IDTKN(bytes(24), WEAK)]
)
async def test_a_senseless_registration(rig: Rogues, answer: Any) -> None:
    rig.ntf_rogue.answers[ntf.TNEW] = answer
    with pytest.raises(RouterError, match="request to the notification router failed") as caught:
        await rig.ask()
    assert not caught.value.temporary
    assert (await rig.token()).token_id is None
    del rig.ntf_rogue.answers[ntf.TNEW]
    await rig.register()


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (smp.NKEY, smp.OK()),
        (smp.NKEY, smp.NID(bytes(24), WEAK)),
        (smp.NKEY, smp.ERR(ErrorCode.CRYPTO)),
        (ntf.SNEW, ntf.OK()),
        (ntf.SNEW, ntf.SUB(NtfSubStatus(S.ACTIVE))),
        (ntf.SNEW, ntf.ERR(ErrorCode.CMD_SYNTAX)),
        (ntf.SNEW, ntf.ERR(ErrorCode.AUTH)),
    ],
)
async def test_what_makes_no_sense_is_parked(rig: Rogues, command: type, answer: Any) -> None:
    rogue = rig.smp_rogue if command is smp.NKEY else rig.ntf_rogue
    rogue.answers[command] = answer
    await rig.register()
    conn_id = await rig.connected()
    await rig.until_action([conn_id], None)
    del rogue.answers[command]
    await rig.ntf.create([conn_id])
    await rig.until_action([conn_id], SubAction.NTF_CHECK)


@pytest.mark.parametrize("answer", [ntf.OK(), ntf.ERR(ErrorCode.CMD_SYNTAX)])
async def test_a_senseless_check_is_parked(rig: Rogues, answer: Any) -> None:
    await rig.register()
    conn_id = await rig.connected()
    await rig.until_action([conn_id], SubAction.NTF_CHECK)
    rig.ntf_rogue.answers[ntf.SCHK] = answer
    rig.clock.ahead = 86_400.0
    await rig.ntf.wake_pending()
    await rig.until_action([conn_id], None)


@pytest.mark.parametrize(
    "state", [S.END, S.AUTH, S.DELETED, S.SERVICE, S.ERR], ids=lambda state: state.name
)
async def test_every_ended_status_begins_again(rig: Rogues, state: SubscriptionState) -> None:
    await rig.register()
    conn_id = await rig.connected()
    await rig.until_action([conn_id], SubAction.NTF_CHECK)
    rig.ntf_rogue.answers[ntf.SCHK] = ntf.SUB(NtfSubStatus(state, b""))
    rig.clock.ahead = 86_400.0
    await rig.ntf.wake_pending()
    await rig.until_asked(smp.NKEY, 2)
    await rig.until_asked(ntf.SNEW, 2)
    await rig.until_action([conn_id], SubAction.NTF_CHECK)


async def test_a_senseless_deletion_is_done(rig: Rogues) -> None:
    await rig.register()
    conn_id = await rig.connected()
    await rig.until_action([conn_id], SubAction.NTF_CHECK)
    rig.smp_rogue.answers[smp.NDEL] = smp.ERR(ErrorCode.AUTH)
    rig.ntf_rogue.answers[ntf.SDEL] = ntf.IDSUB(bytes(24))
    await rig.enable(conn_id, False)
    await rig.until_none([conn_id])
    assert rig.ntf_rogue.asked[ntf.SDEL] == 1


@pytest.mark.parametrize("answer", [INTERNAL, QUOTA, ntf.ERR(STORE("full"))])
async def test_an_interval_that_cannot_be_set_is_set_later(rig: Rogues, answer: Any) -> None:
    """The token is active all the same."""
    rig.ntf_rogue.answers[ntf.TCRN] = answer
    await rig.ask(NotificationsMode.PERIODIC)
    assert await rig.verify() is TokenStatus.ACTIVE
    await rig.until_asked(ntf.TCRN, 3)
    assert (await rig.token()).cron_minutes == 0
    del rig.ntf_rogue.answers[ntf.TCRN]

    async def is_set() -> bool:
        return (await rig.token()).cron_minutes == 20

    await eventually(is_set, TIMEOUT)


async def test_an_interval_that_is_refused_is_not_insisted_on(rig: Rogues) -> None:
    rig.ntf_rogue.answers[ntf.TCRN] = ntf.ERR(ErrorCode.CMD_SYNTAX)
    await rig.ask(NotificationsMode.PERIODIC)
    assert await rig.verify() is TokenStatus.ACTIVE
    assert rig.ntf_rogue.asked[ntf.TCRN] == 1


@pytest.mark.parametrize(
    ("command", "what"),
    [(ntf.TNEW, "ask"), (ntf.TVFY, "verify"), (ntf.TCHK, "check")],
)
async def test_a_router_that_cannot_now(
    rig: Rogues, command: type, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "ask": rig.ask,
        "verify": rig.verify,
        "check": rig.ntf.check_token,
    }
    if what != "ask":
        await rig.ask()
    rig.ntf_rogue.answers[command] = INTERNAL
    with pytest.raises(RouterError, match="cannot serve this now") as caught:
        await calls[what]()
    assert caught.value.temporary
    await rig.until_asked(command, 3)  # it is tried without being asked
    del rig.ntf_rogue.answers[command]
    await rig.until_status(TokenStatus.REGISTERED if what == "ask" else TokenStatus.ACTIVE)


async def test_a_token_that_cannot_be_deleted_now_is_deleted_later(rig: Rogues) -> None:
    await rig.register()
    rig.ntf_rogue.answers[ntf.TDEL] = INTERNAL
    await rig.ntf.delete_token()
    await rig.until_asked(ntf.TDEL, 3)
    del rig.ntf_rogue.answers[ntf.TDEL]

    async def is_deleted() -> bool:
        rows = await rig.store.read(lambda tx: tx.query("SELECT 1 FROM ntf_tokens_to_delete"))
        return not rows

    await eventually(is_deleted, TIMEOUT)


async def test_what_cannot_be_registered_is_not_tried_for_ever(
    rig: Rogues, caplog: pytest.LogCaptureFixture
) -> None:
    rig.ntf_rogue.answers[ntf.TNEW] = ntf.ERR(ErrorCode.AUTH)
    with pytest.raises(RouterError, match="refused the device token"):
        await rig.ask()
    await rig.restart()  # a start asks once more
    await rig.until_asked(ntf.TNEW, 2)

    async def is_logged() -> bool:
        return "cannot be registered" in caplog.text

    await eventually(is_logged)
    assert rig.ntf_rogue.asked[ntf.TNEW] == 2
    assert rig.device.token.decode() not in caplog.text


async def test_the_network_is_back(rig: Rogues) -> None:
    """Long intervals are cut short."""
    await rig.close()
    rig.store = await AgentStore.open(rig.directory)
    rig.clients = ClientPool(CLIENTS)
    slow = SETTINGS.retry.__class__(first=3600.0, last=3600.0)
    settings = SETTINGS.__class__(retry=slow, intervals=SETTINGS.intervals)
    rig.ntf = Notifications(rig.store, rig.clients, settings, clock=rig.clock)
    rig.is_open = True
    await rig.ntf.start()
    rig.device = a_device()
    rig.ntf_rogue.answers[ntf.TNEW] = INTERNAL
    with pytest.raises(RouterError):
        await rig.ask()
    await rig.until_asked(ntf.TNEW, 2)
    del rig.ntf_rogue.answers[ntf.TNEW]
    rig.ntf.network_changed()
    await rig.until_status(TokenStatus.REGISTERED)
