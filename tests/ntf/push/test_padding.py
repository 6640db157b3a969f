import logging
from pathlib import Path

import pytest

from heliograph.crypto.boxes import TAG_SIZE
from heliograph.ntf.push.padding import Padding
from heliograph.sim.providers.apns import PAYLOAD_LIMIT
from heliograph.wire.ntf.push import (
    APNS_DOCUMENTED_SIZE,
    FCM_PUSH_SIZE,
    PUSH_SIZE,
    WEB_PUSH_SIZE,
    MessagePush,
    encode_apns,
)
from heliograph.wire.ntf.tokens import PushProvider
from tests.ntf.support import NtfWorld

PROD, DEV = PushProvider.APNS_PROD, PushProvider.APNS_DEV


def test_the_fallback_is_the_longest_that_fits_the_documented_limit() -> None:
    def body(size: int) -> int:
        return len(encode_apns(MessagePush(bytes(24), bytes(size + TAG_SIZE))))

    assert body(APNS_DOCUMENTED_SIZE) <= PAYLOAD_LIMIT < body(APNS_DOCUMENTED_SIZE + 1)


def test_all_kinds_of_apns_share_a_length() -> None:
    padding = Padding()
    assert padding.length(PROD) == padding.length(DEV) == PUSH_SIZE
    assert padding.shorten(PROD, PUSH_SIZE)
    assert padding.length(PROD) == padding.length(DEV) == APNS_DOCUMENTED_SIZE
    assert padding.length(PushProvider.WEB_PUSH) == WEB_PUSH_SIZE
    assert padding.length(PushProvider.FCM) == FCM_PUSH_SIZE


def test_a_refusal_of_the_earlier_length_is_sent_again_without_another_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    padding = Padding()
    assert padding.shorten(PROD, PUSH_SIZE)
    assert padding.shorten(DEV, PUSH_SIZE)  # it was in flight
    assert len(caplog.records) == 1


def test_there_is_one_fallback() -> None:
    padding = Padding()
    padding.shorten(PROD, PUSH_SIZE)
    assert not padding.shorten(PROD, APNS_DOCUMENTED_SIZE)
    assert not Padding(1024).shorten(PROD, 1024)
    assert not padding.shorten(PushProvider.WEB_PUSH, PUSH_SIZE)


async def test_pushes_that_are_too_large_are_sent_again_and_opened(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = NtfWorld(sqlite_url, tmp_path, payload_limit=PAYLOAD_LIMIT)
    await world.start()
    try:
        phone = await world.registered()
        queue = await world.queue()
        await phone.subscribe(queue)
        await world.send(queue)
        await phone.notified_of(queue)
        statuses = [entry.status for entry in world.apns.simulator.record.select()]
        assert statuses == [413, 200, 200]
        sizes = {len(entry.body) for entry in world.apns.simulator.record.select(accepted=True)}
        assert max(sizes) <= PAYLOAD_LIMIT
        assert caplog.text.count("APNs refuses payloads") == 1
    finally:
        await world.stop()
