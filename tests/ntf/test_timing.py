"""The time of a refusal does not tell whether a token or subscription exists.

Refusals for a known and for unknown entities alternate. Two statistics are taken: the probability
that the known one takes longer (the area under the ROC curve of an attacker who measures times;
Mann and Whitney's U divided by the number of pairs; 0.5 is no information), and the ratio of the
medians. A leak shows in both, each time. Without one, the share deviates by `SHARE_TOLERANCE` in
about one of 3,000 measurements (its standard deviation is 1 / sqrt(6 * ROUNDS)), so in `ATTEMPTS`
of them in a row with a probability below 1e-10.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.transport.client import ClientRequest
from heliograph.transport.server import Answer, ServerConnection
from heliograph.wire import ntf
from heliograph.wire.addresses import SMPQueueNtf, decode_address
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf import NtfCommand
from heliograph.wire.ntf.tokens import TokenStatus
from tests.keys import fixed_key_pair
from tests.ntf.support import AUTH, OK, NtfWorld, Phone, a_device, ask_many
from tests.waiting import until

ROUNDS = 150
SHARE_TOLERANCE = 0.12
RATIO_TOLERANCE = 1.1
ATTEMPTS = 3

QUEUE = SMPQueueNtf(
    decode_address("smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"), bytes(24)
)
KEY = fixed_key_pair(Algorithm.ED25519, "timing").private

OF_TOKENS: dict[str, Callable[[bytes], tuple[NtfCommand, bytes]]] = {
    "TCHK": lambda token_id: (ntf.TCHK(), token_id),
    "TVFY": lambda token_id: (ntf.TVFY(bytes(32)), token_id),
    "TRPL": lambda token_id: (ntf.TRPL(a_device()), token_id),
    "TCRN": lambda token_id: (ntf.TCRN(30), token_id),
    "TDEL": lambda token_id: (ntf.TDEL(), token_id),
    "SNEW": lambda token_id: (ntf.SNEW(token_id, QUEUE, KEY), b""),
}
OF_SUBSCRIPTIONS: dict[str, Callable[[bytes], tuple[NtfCommand, bytes]]] = {
    "SCHK": lambda subscription_id: (ntf.SCHK(), subscription_id),
    "SDEL": lambda subscription_id: (ntf.SDEL(), subscription_id),
}


def slower_share(times: list[float], others: list[float]) -> float:
    """Return the probability that a value of `times` is greater than one of `others`."""
    pairs = sum((a > b) + 0.5 * (a == b) for a in times for b in others)
    return pairs / (len(times) * len(others))


async def leaks(
    world: NtfWorld,
    phone: Phone,
    request: Callable[[bytes], tuple[NtfCommand, bytes]],
    known_id: bytes,
    *,
    warm: bool,
) -> bool:
    """Return whether refusals for a known entity take another time than those for unknown ones."""
    wrong = generate_key_pair(Algorithm.X25519).private
    known: list[float] = []
    unknown: list[float] = []
    for index in range(2 * ROUNDS):
        is_known = index % 2 == 0
        if not warm:
            world.router.store._tokens.clear()  # 50,000 others would displace them
        command, entity_id = request(known_id if is_known else os.urandom(24))
        began = time.perf_counter()
        assert await phone.ask(command, entity_id, wrong) == AUTH
        (known if is_known else unknown).append(time.perf_counter() - began)
    share = slower_share(known, unknown)
    medians = sorted((statistics.median(known), statistics.median(unknown)))
    ratio = medians[1] / medians[0]
    return abs(share - 0.5) > SHARE_TOLERANCE and ratio > RATIO_TOLERANCE


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
async def test_a_refusal_takes_as_long_for_unknown_entities(world: NtfWorld, warm: bool) -> None:
    phone = await world.registered()
    subscription = await phone.subscribe(await world.queue())
    for name, request in (OF_TOKENS | OF_SUBSCRIPTIONS).items():
        known_id = subscription if name in OF_SUBSCRIPTIONS else phone.token_id
        for _ in range(ATTEMPTS):
            if not await leaks(world, phone, request, known_id, warm=warm):
                break
        else:
            pytest.fail(f"the time of {name} tells whether the entity exists")
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_refusals_do_not_wait_for_other_commands_of_the_batch(
    small_world: NtfWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 001, behaviour 11: what is refused does not compete with what is executed."""
    phone = await small_world.registered()
    store, answered = small_world.router.store, []
    stuck = asyncio.Event()
    set_cron, answer = store.set_cron, ServerConnection.answer

    async def slow(token_id: bytes, minutes: int) -> None:
        await stuck.wait()
        await set_cron(token_id, minutes)

    def recorded(self: ServerConnection, answers: Sequence[Answer]) -> None:
        answered.append([item.message for item in answers])
        answer(self, answers)

    monkeypatch.setattr(store, "set_cron", slow)
    monkeypatch.setattr(ServerConnection, "answer", recorded)
    wrong = generate_key_pair(Algorithm.X25519).private
    batch: list[ClientRequest[Any]] = [
        ClientRequest(ntf.TCRN(30), phone.token_id, phone.keys.private),
        ClientRequest(ntf.TCHK(), phone.token_id, wrong),
        ClientRequest(ntf.TCHK(), os.urandom(24), wrong),
    ]
    asked = asyncio.create_task(ask_many(phone.client, batch))
    await until(lambda: answered == [[AUTH, AUTH]])
    stuck.set()
    assert await asked == [OK, AUTH, AUTH]
