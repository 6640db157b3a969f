import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.crypto.boxes import TAG_SIZE, open_box_padded
from heliograph.ntf.payload import build
from heliograph.ntf.records import DebtKind, Notice, Owed
from heliograph.wire.addresses import decode_address
from heliograph.wire.push import (
    FCM_PUSH_SIZE,
    PUSH_SIZE,
    CheckMessagesPush,
    MessagePush,
    VerificationPush,
    decode_pn_messages,
)
from heliograph.wire.tokens import APNSDeviceToken, DeviceToken, FcmDeviceToken, PushProvider

SECRET, NONCE, CODE = os.urandom(32), os.urandom(24), os.urandom(32)
ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com:5223"
DEVICE: DeviceToken = APNSDeviceToken(PushProvider.APNS_PROD, b"00ff")
FCM = FcmDeviceToken("a-registration-token")


def notice(seq: int, address: str = ADDRESS) -> Notice:
    return Notice(seq, address, os.urandom(24), 1_700_000_000 + seq, os.urandom(24), bytes(144))


def owed(kind: DebtKind, *notices: Notice, device: DeviceToken = DEVICE) -> Owed:
    return Owed(b"token", kind, device, SECRET, CODE, 1, 0.0, 0, 1.0, notices)


def test_a_check_has_nothing_in_it() -> None:
    assert build(owed(DebtKind.CHECK), NONCE) == CheckMessagesPush()


@pytest.mark.parametrize(("device", "size"), [(DEVICE, PUSH_SIZE), (FCM, FCM_PUSH_SIZE)])
def test_a_verification_has_the_code(device: DeviceToken, size: int) -> None:
    push = build(owed(DebtKind.VERIFICATION, device=device), NONCE)
    assert isinstance(push, VerificationPush)
    assert open_box_padded(SECRET, push.nonce, push.box) == CODE
    assert len(push.box) == size + TAG_SIZE


@pytest.mark.parametrize(("device", "size"), [(DEVICE, PUSH_SIZE), (FCM, FCM_PUSH_SIZE)])
def test_six_notifications_oldest_first(device: DeviceToken, size: int) -> None:
    notices = [notice(seq) for seq in range(6)]
    push = build(owed(DebtKind.MESSAGE, *notices, device=device), NONCE)
    assert isinstance(push, MessagePush)
    messages = decode_pn_messages(open_box_padded(SECRET, NONCE, push.box))
    assert [message.nonce for message in messages] == [item.nonce for item in notices]
    assert [message.timestamp for message in messages] == [item.timestamp for item in notices]
    assert [message.queue.notifier_id for message in messages] == [
        item.notifier_id for item in notices
    ]
    assert {message.queue.server for message in messages} == {decode_address(ADDRESS)}
    assert len(push.box) == size + TAG_SIZE


def test_nothing_to_tell_is_no_push() -> None:
    assert build(owed(DebtKind.MESSAGE), NONCE) is None


@given(st.integers(1, 12), st.integers(1, 6), st.sampled_from([DEVICE, FCM]))
def test_addresses_with_many_hosts_leave_room_for_the_newest(
    hosts: int, count: int, device: DeviceToken
) -> None:
    names = ",".join(f"smp{number}.a-rather-long-domain.example.org" for number in range(hosts))
    address = ADDRESS.replace("smp.example.com", names)
    notices = [notice(seq, address) for seq in range(count)]
    push = build(owed(DebtKind.MESSAGE, *notices, device=device), NONCE)
    assert isinstance(push, MessagePush)
    messages = decode_pn_messages(open_box_padded(SECRET, NONCE, push.box))
    kept = [item.nonce for item in notices][-len(messages) :]
    assert [message.nonce for message in messages] == kept
    if len(messages) < count:
        wider = replace(owed(DebtKind.MESSAGE), notices=tuple(notices[-len(messages) - 1 :]))
        assert build(wider, NONCE) is not None  # it drops what does not fit, and says nothing


def test_secrets_are_not_shown() -> None:
    text = repr(owed(DebtKind.MESSAGE, notice(1)))
    assert repr(SECRET) not in text
    assert repr(CODE) not in text
    assert "00ff" not in text
