import contextlib
import os
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given, strategies as st

from heliograph.crypto.keys import dh
from heliograph.ntf.reference import storelog
from heliograph.ntf.reference.storelog import (
    CronSet,
    LastNotification,
    ServiceSet,
    SubscriptionCreatedLine,
    SubscriptionDeletedLine,
    SubscriptionStatusSet,
    TokenCreated,
    TokenDeletedLine,
    TokenReplacedLine,
    TokenStatusSet,
    TokenUsed,
    decode_record,
    encode_record,
)
from heliograph.ntf.store.records import Token
from heliograph.runtime.reference.storelog import BadLine
from heliograph.wire.addresses import SMPQueueNtf, decode_address
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import PNMessageData
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    FcmDeviceToken,
    NtfSubStatus,
    PushProvider,
    SubscriptionState,
    TokenStatus,
    WPDeviceToken,
)
from tests.keys import fixed_key_pair


def b64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


FINGERPRINT = bytes(range(32))
SERVER = f"smp://{b64(FINGERPRINT)}@smp.example.com,abc.onion"
KEYS = fixed_key_pair(Algorithm.X25519, "token")
CLIENT = fixed_key_pair(Algorithm.X25519, "client")
AUTH = fixed_key_pair(Algorithm.ED25519, "auth")
NOTIFIER = fixed_key_pair(Algorithm.X25519, "notifier")
SECRET = dh(CLIENT.public, KEYS.private)
TOKEN_ID, SUBSCRIPTION_ID = b"t" * 24, b"s" * 24
CODE = b"c" * 32
TOKEN = Token(
    TOKEN_ID,
    APNSDeviceToken(PushProvider.APNS_PROD, b"00ff"),
    TokenStatus.ACTIVE,
    AUTH.public,
    KEYS.private,
    SECRET,
    CODE,
    20,
)
QUEUE = SMPQueueNtf(decode_address(SERVER), b"n" * 24)
TCREATE = (
    f"TCREATE tknId={b64(TOKEN_ID)} token=apns_prod 00ff tokenStatus=ACTIVE"
    f" verifyKey={b64(AUTH.public)} dhKeys={b64(KEYS.public)} {b64(KEYS.private)}"
    f" dhSecret={b64(SECRET)} regCode={b64(CODE)} cron=20"
)
SCREATE = (
    f"SCREATE subId={b64(SUBSCRIPTION_ID)} smpQueue={SERVER}/{b64(QUEUE.notifier_id)}"
    f" notifierKey={b64(NOTIFIER.private)} tknId={b64(TOKEN_ID)} subStatus=ACTIVE"
)
ACTIVE = NtfSubStatus(SubscriptionState.ACTIVE)
SUBSCRIPTION = SubscriptionCreatedLine(SUBSCRIPTION_ID, QUEUE, NOTIFIER.private, TOKEN_ID, ACTIVE)
ID = b64(TOKEN_ID)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (TCREATE, TokenCreated(TOKEN)),
        (f"{TCREATE} updatedAt=1767225600", TokenCreated(TOKEN, 1_767_225_600)),
        (f"TSTATUS {ID} INVALID,BAD", TokenStatusSet(TOKEN_ID, TokenStatus.INVALID_BAD)),
        (f"TSTATUS {ID} INVALID", TokenStatusSet(TOKEN_ID, TokenStatus.INVALID)),
        (
            f"TUPDATE {ID} apns_dev abcd {b64(CODE)}",
            TokenReplacedLine(TOKEN_ID, APNSDeviceToken(PushProvider.APNS_DEV, b"abcd"), CODE),
        ),
        (f"TCRON {ID} 30", CronSet(TOKEN_ID, 30)),
        (f"TDELETE {ID}", TokenDeletedLine(TOKEN_ID)),
        (f"TTIME {ID} 1767225600", TokenUsed(TOKEN_ID, 1_767_225_600)),
        (SCREATE, SUBSCRIPTION),
        (f"{SCREATE} serviceAssoc=F", SUBSCRIPTION),
        (
            f"{SCREATE} serviceAssoc=T",
            SubscriptionCreatedLine(
                SUBSCRIPTION_ID, QUEUE, NOTIFIER.private, TOKEN_ID, ACTIVE, associated=True
            ),
        ),
        (
            # the reference reads back the end of the line into the error, and writes it again
            f"{SCREATE.replace('ACTIVE', 'ERR SMP error X')} serviceAssoc=F serviceAssoc=F",
            SubscriptionCreatedLine(
                SUBSCRIPTION_ID,
                QUEUE,
                NOTIFIER.private,
                TOKEN_ID,
                NtfSubStatus(SubscriptionState.ERR, b"SMP error X"),
            ),
        ),
        (
            f"SSTATUS {ID} AUTH",
            SubscriptionStatusSet(TOKEN_ID, NtfSubStatus(SubscriptionState.AUTH)),
        ),
        (f"SSTATUS {ID} ACTIVE service=T", SubscriptionStatusSet(TOKEN_ID, ACTIVE, True)),
        (f"SDELETE {ID}", SubscriptionDeletedLine(TOKEN_ID)),
        (f"SERVICE {SERVER} service={ID}", ServiceSet(decode_address(SERVER), TOKEN_ID)),
        (f"SERVICE {SERVER} service=off", ServiceSet(decode_address(SERVER), None)),
        (
            f"v1 {ID} {SERVER}/{b64(QUEUE.notifier_id)} 1700000000 {b64(bytes(24))} {b64(b'm')}",
            LastNotification(TOKEN_ID, PNMessageData(QUEUE, 1_700_000_000, bytes(24), b"m")),
        ),
    ],
)
def test_every_record(line: str, record: object) -> None:
    assert decode_record(line) == record


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NONSENSE",
        "TCREATE",
        TCREATE.replace("cron=20", "cron=70000"),
        TCREATE.replace("cron=20", "cron="),
        TCREATE.replace("ACTIVE", "HAPPY"),
        TCREATE.replace("00ff", "00f"),
        TCREATE.replace(b64(SECRET), b64(SECRET[:31])),
        TCREATE.replace(b64(AUTH.public), b64(AUTH.private)),
        TCREATE.replace(b64(KEYS.private), b64(AUTH.private)),
        SCREATE.replace("ACTIVE", "ERR"),
        SCREATE.replace("ACTIVE", "ACTIVE now"),
        SCREATE.replace(b64(NOTIFIER.private), b64(NOTIFIER.public)),
        SCREATE.replace("smp://", "ntf://"),
        f"TSTATUS {ID}",
        f"TSTATUS {ID} ACTIVE x",
        f"TDELETE {ID} {ID}",
        "TDELETE not/base64",
        f"SERVICE {SERVER.replace('smp:', 'ntf:')} service=off",
        f"v1 {ID} nothing",
        f"{TCREATE}\r",
    ],
)
def test_bad_lines_and_no_secrets(line: str) -> None:
    with pytest.raises(BadLine) as error:
        decode_record(line)
    for secret in (b64(KEYS.private), b64(SECRET), b64(NOTIFIER.private), "00ff"):
        assert secret not in str(error.value)


@given(
    st.text(max_size=200)
    | st.sampled_from([TCREATE, SCREATE]).flatmap(
        lambda line: st.integers(0, len(line)).map(lambda cut: line[:cut])
    )
)
def test_nothing_but_bad_line_escapes(line: str) -> None:
    with contextlib.suppress(BadLine):
        decode_record(line)


@pytest.mark.parametrize(
    "device",
    [
        TOKEN.device,
        APNSDeviceToken(PushProvider.APNS_NULL, b"test_ntf_token"),
        FcmDeviceToken("abc:def"),
        WPDeviceToken("push.example.com", "", "/p", bytes(16), b"\x04" + bytes(64)),
    ],
)
def test_out_and_in_again(device: APNSDeviceToken) -> None:
    token = Token(
        os.urandom(24),
        device,
        TokenStatus.REGISTERED,
        AUTH.public,
        KEYS.private,
        SECRET,
        CODE,
    )
    for record in (
        TokenCreated(token),
        TokenCreated(token, 86_400),
        SUBSCRIPTION,
        LastNotification(TOKEN_ID, PNMessageData(QUEUE, 1, bytes(24), b"meta")),
    ):
        assert decode_record(encode_record(record)) == record


def test_what_is_written_is_the_references_text() -> None:
    assert encode_record(TokenCreated(TOKEN)) == TCREATE
    assert encode_record(SUBSCRIPTION) == f"{SCREATE} serviceAssoc=F"


def test_an_error_stays_on_its_line() -> None:
    status = NtfSubStatus(SubscriptionState.ERR, b"two\nlines")
    record = SubscriptionCreatedLine(SUBSCRIPTION_ID, QUEUE, NOTIFIER.private, TOKEN_ID, status)
    assert "\n" not in encode_record(record)


def test_the_modules_own_words_name_every_kind() -> None:
    assert storelog.__doc__ is not None
    for kind in storelog._KINDS:
        assert kind in storelog.__doc__
