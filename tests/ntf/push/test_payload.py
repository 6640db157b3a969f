import os
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from heliograph.crypto.boxes import TAG_SIZE, open_box_padded
from heliograph.ntf.push import payload
from heliograph.ntf.store.records import Notice, PendingPush, PushKind
from heliograph.wire.addresses import decode_address
from heliograph.wire.ntf.push import (
    FCM_PUSH_SIZE,
    PUSH_SIZE,
    CheckMessagesPush,
    MessagePush,
    Push,
    VerificationPush,
    decode_pn_messages,
    push_size,
)
from heliograph.wire.ntf.tokens import APNSDeviceToken, DeviceToken, FcmDeviceToken, PushProvider
from tests.keys import fixed_bytes

SECRET, NONCE, CODE = fixed_bytes("secret"), fixed_bytes("nonce", 24), fixed_bytes("code")
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com:5223"
DEVICE: DeviceToken = APNSDeviceToken(PushProvider.APNS_PROD, b"00ff")
FCM = FcmDeviceToken("a-registration-token")


def notice(seq: int, address: str = ADDRESS) -> Notice:
    return Notice(seq, address, os.urandom(24), 1_700_000_000 + seq, os.urandom(24), bytes(144))


def pending_push(kind: PushKind, *notices: Notice, device: DeviceToken = DEVICE) -> PendingPush:
    return PendingPush(b"token", kind, device, SECRET, CODE, 1, 0.0, 0, 1.0, notices)


def build(push: PendingPush, nonce: bytes) -> Push | None:
    return payload.build(push, nonce, push_size(push.device.provider)).payload


def test_a_check_has_nothing_in_it() -> None:
    assert build(pending_push(PushKind.CHECK), NONCE) == CheckMessagesPush()


@pytest.mark.parametrize(("device", "size"), [(DEVICE, PUSH_SIZE), (FCM, FCM_PUSH_SIZE)])
def test_a_verification_has_the_code(device: DeviceToken, size: int) -> None:
    push = build(pending_push(PushKind.VERIFICATION, device=device), NONCE)
    assert isinstance(push, VerificationPush)
    assert open_box_padded(SECRET, push.nonce, push.box) == CODE
    assert len(push.box) == size + TAG_SIZE


@pytest.mark.parametrize(("device", "size"), [(DEVICE, PUSH_SIZE), (FCM, FCM_PUSH_SIZE)])
def test_six_notifications_oldest_first(device: DeviceToken, size: int) -> None:
    notices = [notice(seq) for seq in range(6)]
    push = build(pending_push(PushKind.MESSAGE, *notices, device=device), NONCE)
    assert isinstance(push, MessagePush)
    messages = decode_pn_messages(open_box_padded(SECRET, NONCE, push.box))
    assert [message.nonce for message in messages] == [item.nonce for item in notices]
    assert [message.timestamp for message in messages] == [item.timestamp for item in notices]
    assert [message.queue.notifier_id for message in messages] == [
        item.notifier_id for item in notices
    ]
    assert {message.queue.server for message in messages} == {decode_address(ADDRESS)}
    assert len(push.box) == size + TAG_SIZE


def test_nothing_to_push_is_no_push() -> None:
    assert build(pending_push(PushKind.MESSAGE), NONCE) is None


@given(st.integers(1, 12), st.integers(1, 6), st.sampled_from([DEVICE, FCM]))
def test_addresses_with_many_hosts_leave_room_for_the_newest(
    hosts: int, count: int, device: DeviceToken
) -> None:
    names = ",".join(f"smp{number}.a-rather-long-domain.example.org" for number in range(hosts))
    address = ADDRESS.replace("smp.example.com", names)
    notices = [notice(seq, address) for seq in range(count)]
    whole = pending_push(PushKind.MESSAGE, *notices, device=device)
    push, sent = payload.build(whole, NONCE, push_size(device.provider))
    assert isinstance(push, MessagePush)
    messages = decode_pn_messages(open_box_padded(SECRET, NONCE, push.box))
    assert sent == replace(whole, notices=tuple(notices[-len(messages) :]))
    assert [message.nonce for message in messages] == [item.nonce for item in sent.notices]
    if len(messages) < count:
        wider = tuple(notices[-len(messages) - 1 :])
        assert payload.build(replace(whole, notices=wider), NONCE, push_size(device.provider)) == (
            push,
            sent,
        )


def test_an_address_that_never_fits_is_no_push() -> None:
    long = ADDRESS.replace("smp.example.com", ",".join(f"smp{n}.example.org" for n in range(300)))
    assert payload.build(pending_push(PushKind.MESSAGE, notice(1, long)), NONCE, PUSH_SIZE) == (
        None,
        pending_push(PushKind.MESSAGE),
    )


def test_secrets_are_not_shown() -> None:
    text = repr(pending_push(PushKind.MESSAGE, notice(1)))
    assert repr(SECRET) not in text
    assert repr(CODE) not in text
    assert "00ff" not in text
