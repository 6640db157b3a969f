"""The CPU of a command does not grow with the number of tokens, of registrations of one device, nor
of subscriptions of a token or router; registrations of one device are bounded.
"""

import os
import time
from collections.abc import Awaitable, Callable
from statistics import median

import pytest

from heliograph.db.dialects import Transaction
from heliograph.ntf.store.devices import encode_device
from heliograph.wire import ntf
from heliograph.wire.addresses import SMPQueueNtf
from tests.ntf.support import NtfWorld, Phone
from tests.smp.support import keys

FEW = 100
REPEATS = 15
MAX_RATIO = 4.0
"""Between medians of CPU, which load disturbs little; a scan of 100 times the rows is far above."""

_TOKEN = (
    "INSERT INTO tokens (token_id, device, status, auth_key, dh_private, dh_secret, code,"
    " cron_minutes, created_at, seen_at)"
    " SELECT ?, ?, status, ?, dh_private, dh_secret, code, 0, 0, seen_at"
    " FROM tokens WHERE token_id = ?"
)
_SUBSCRIPTION = (
    "INSERT INTO subscriptions (subscription_id, token_id, server_id, notifier_id, notifier_key,"
    " status, error, associated) SELECT ?, ?, server_id, ?, notifier_key, 'ACTIVE', error, 0"
    " FROM subscriptions WHERE subscription_id = ?"
)


async def add_rows(world: NtfWorld, phone: Phone, subscription_id: bytes, count: int) -> None:
    """Make tokens, half of them of one device, and subscriptions of one token at one router."""

    def write(tx: Transaction) -> None:
        tx.many(
            _TOKEN,
            [
                (os.urandom(24), device, os.urandom(44), phone.token_id)
                for _ in range(count // 2)
                for device in (f"apns_test {os.urandom(8).hex()}", encode_device(phone.device))
            ],
        )
        tx.many(
            _SUBSCRIPTION,
            [
                (os.urandom(24), phone.token_id, os.urandom(24), subscription_id)
                for _ in range(count)
            ],
        )

    await world.router.store.database.write(write)


async def cpu(action: Callable[[], Awaitable[object]]) -> float:
    """Return the median CPU seconds of this process for an action."""
    taken = []
    for _ in range(REPEATS):
        started = time.process_time()
        await action()
        taken.append(time.process_time() - started)
    return median(taken)


@pytest.mark.timeout(600)
async def test_each_command(small_world: NtfWorld, is_large: bool) -> None:
    world = small_world
    phone = await world.registered()
    subscription_id = await phone.subscribe(await world.queue())

    async def tnew() -> None:
        another = await world.phone(phone.device, client=phone.client)
        assert isinstance(await another.tnew(), ntf.IDTKN)
        assert await another.ask(ntf.TDEL(), another.token_id) == ntf.OK()

    async def snew_sdel() -> None:
        command = ntf.SNEW(
            phone.token_id, SMPQueueNtf(world.smp.address, os.urandom(24)), keys().private
        )
        answer = await phone.ask(command)
        assert isinstance(answer, ntf.IDSUB), answer
        assert await phone.ask(ntf.SDEL(), answer.subscription_id) == ntf.OK()

    async def tchk() -> None:
        await phone.tchk()

    async def tcrn() -> None:
        assert await phone.ask(ntf.TCRN(20), phone.token_id) == ntf.OK()

    async def schk() -> None:
        await phone.schk(subscription_id)

    commands = {
        "TNEW, TDEL": tnew,
        "SNEW, SDEL": snew_sdel,
        "TCHK": tchk,
        "TCRN": tcrn,
        "SCHK": schk,
    }
    await add_rows(world, phone, subscription_id, FEW)
    few = {name: await cpu(action) for name, action in commands.items()}
    for rows in (10_000, 100_000) if is_large else (10_000,):
        await add_rows(world, phone, subscription_id, rows - FEW)
        many = {name: await cpu(action) for name, action in commands.items()}
        for name, seconds in many.items():
            assert seconds < few[name] * MAX_RATIO + 0.001, (name, rows, few[name], seconds)


async def test_registrations_of_one_device(small_world: NtfWorld, is_large: bool) -> None:
    """They are bounded, so the time of the next one is, too; a verified one removes the others."""
    first = await small_world.phone()
    for _ in range(1000 if is_large else 100):
        phone = await small_world.phone(first.device, client=first.client)
        assert isinstance(await phone.tnew(), ntf.IDTKN)
    [[rows]] = await small_world.read(lambda tx: tx.query("SELECT COUNT(*) FROM tokens"))
    assert rows <= 20


async def test_tokens_moved_to_one_device(small_world: NtfWorld) -> None:
    first = await small_world.phone()
    for _ in range(25):
        phone = await small_world.phone(client=first.client)
        assert isinstance(await phone.tnew(), ntf.IDTKN)
        assert await phone.trpl(first.device) == ntf.OK()
    [[rows]] = await small_world.read(lambda tx: tx.query("SELECT COUNT(*) FROM tokens"))
    assert rows <= 20
