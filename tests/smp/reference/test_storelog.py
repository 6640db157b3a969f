"""Lines of the reference's store log, as its `StoreLogRecord` and `MsgLogRecord` encode them."""

import contextlib

import pytest
from hypothesis import given, strategies as st

from heliograph.runtime.reference.storelog import BadLine
from heliograph.smp.reference.records import (
    LinkSet,
    MessageLogged,
    NotificationLogged,
    NotifierSet,
    QueueCreated,
    QueueDeleted,
    QueueServiceSet,
    QueueStatusSet,
    QueueUsed,
    RecipientKeysSet,
    SenderKeySet,
    ServiceCreated,
)
from heliograph.smp.reference.storelog import (
    MAX_LINK_DATA,
    decode_smp_record,
    encode_smp_record,
)
from heliograph.smp.store.changes import queue_row
from heliograph.smp.store.records import (
    LinkRecord,
    NotifierRecord,
    QueueRecord,
    QueueStatus,
    StoredLinkData,
)
from heliograph.wire.errors import BLOCKED, BlockingReason, ClientNotice
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import Algorithm
from heliograph.wire.primitives import b64encode
from heliograph.wire.smp.fields import QueueMode
from tests.keys import fixed_key_pair

RID, SID, LID, NID, SERVICE = (letter * 24 for letter in (b"r", b"s", b"l", b"n", b"v"))
KEY = fixed_key_pair(Algorithm.ED25519, "recipient").public
OTHER = fixed_key_pair(Algorithm.X25519, "sender").public
SECRET = b"d" * 32


def b64(data: bytes) -> str:
    return b64encode(data)


R, K, S = b64(RID), b64(KEY), b64(SECRET)
LONG, META = b64(b"i" * 256), b64(bytes(144))
CREATE = f"CREATE rid={R} rk={K} rdh={S} sid={b64(SID)} sk="
SERVICE_LINE = (
    f"NEW_SERVICE service_id={b64(SERVICE)} role=N cert={b64(b'c')},{b64(b'd')}"
    f" cert_hash={b64(b'f' * 32)} created_at=1767225600"
)


def row(record: object) -> object:
    """Records compare by identity, their rows do not."""
    assert isinstance(record, QueueCreated)
    return queue_row(record.queue), record.link_data


def queue(**changes: object) -> QueueRecord:
    made = QueueRecord(RID, SID, (KEY,), SECRET)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


NOTIFIER = NotifierRecord(NID, OTHER, SECRET)
DATA = StoredLinkData(b"fixed data", b"user data")
LINK = LinkRecord.of(LID, DATA.fixed)
LINK_TEXT = f" link_id={b64(LID)} queue_data={b64(DATA.fixed)} {b64(DATA.user)}"
NOTIFIER_TEXT = f" notifier={b64(NID)} {b64(OTHER)} {S}"
SPAM = BLOCKED(BlockingReason.SPAM)

QUEUES = {
    CREATE: queue(),
    f"{CREATE}{b64(OTHER)} queue_mode=M": queue(sender_key=OTHER, mode=QueueMode.MESSAGING),
    f"{CREATE} queue_mode=C": queue(mode=QueueMode.CONTACT),
    f"{CREATE} queue_mode=C{LINK_TEXT}": queue(mode=QueueMode.CONTACT, link=LINK),
    f"{CREATE}{NOTIFIER_TEXT}": queue(notifier=NOTIFIER),
    f"{CREATE} queue_mode=M{NOTIFIER_TEXT} nsrv={b64(SERVICE)} rsrv={b64(SERVICE)}": queue(
        mode=QueueMode.MESSAGING,
        notifier=NotifierRecord(NID, OTHER, SECRET, SERVICE),
        service_id=SERVICE,
    ),
    f"{CREATE} status=off": queue(status=QueueStatus.OFF),
    f"{CREATE} status=blocked,reason=spam": queue(status=QueueStatus.BLOCKED, blocked=SPAM),
    f'{CREATE} status=blocked,reason=content,notice={{"ttl":60}}': queue(
        status=QueueStatus.BLOCKED, blocked=BLOCKED(BlockingReason.CONTENT, ClientNotice(60))
    ),
}


@pytest.mark.parametrize("line", QUEUES)
def test_queues_both_ways(line: str) -> None:
    data = DATA if "link_id" in line else None
    expected = QueueCreated(QUEUES[line], data)
    assert row(decode_smp_record(line)) == row(expected)
    assert encode_smp_record(expected) == line


@pytest.mark.parametrize(
    ("line", "mode"),
    [
        (f"{CREATE} sndSecure=T", QueueMode.MESSAGING),
        (f"{CREATE} sndSecure=F updated_at=1767225600 status=active", QueueMode.CONTACT),
        (f"{CREATE} updated_at=1767225600", None),
    ],
)
def test_queues_of_older_servers(line: str, mode: QueueMode | None) -> None:
    assert row(decode_smp_record(line)) == row(QueueCreated(queue(mode=mode)))


def test_several_recipient_keys() -> None:
    record = QueueCreated(queue(recipient_keys=(KEY, OTHER)))
    line = encode_smp_record(record)
    assert f" rk={K},{b64(OTHER)} " in line
    assert row(decode_smp_record(line)) == row(record)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (f"LINK {R} {b64(LID)} {b64(b'fixed data')} {b64(b'user data')}", LinkSet(RID, LID, DATA)),
        (f"LDELETE {R}", LinkSet(RID, None)),
        (f"SECURE {R} {b64(OTHER)}", SenderKeySet(RID, OTHER)),
        (f"KEYS {R} {K},{b64(OTHER)}", RecipientKeysSet(RID, (KEY, OTHER))),
        (f"NDELETE {R}", NotifierSet(RID)),
        (f"SUSPEND {R}", QueueStatusSet(RID, QueueStatus.OFF)),
        (f"BLOCK {R} reason=spam", QueueStatusSet(RID, QueueStatus.BLOCKED, SPAM)),
        (f"UNBLOCK {R}", QueueStatusSet(RID, QueueStatus.ACTIVE)),
        (f"DELETE {R}", QueueDeleted(RID)),
        (f"TIME {R} 1767225600", QueueUsed(RID, 1_767_225_600)),
        (SERVICE_LINE, ServiceCreated(SERVICE, ServiceRole.NOTIFIER, b"f" * 32, 1_767_225_600)),
        (
            f"QUEUE_SERVICE {R} N {b64(SERVICE)}",
            QueueServiceSet(RID, ServiceRole.NOTIFIER, SERVICE),
        ),
        (f"QUEUE_SERVICE {R} R ", QueueServiceSet(RID, ServiceRole.MESSAGING, None)),
        (
            f"v3 {R} {b64(b'm')} 1767225600 flags=T {b64(b'body')}",
            MessageLogged(RID, b"m", 1_767_225_600, True, b"body"),
        ),
        (
            f"v3 {R} {b64(b'm')} 1767225600 {b64(b'body')}",
            MessageLogged(RID, b"m", 1_767_225_600, False, b"body"),
        ),
        (
            f"v1 {b64(NID)} {b64(b'm')} 1767225600 {b64(b'n' * 24)} {META}",
            NotificationLogged(NID, b"m", 1_767_225_600, b"n" * 24, bytes(144)),
        ),
        (
            f"v3 {R} {b64(b'm')} 1767225600 quota",
            MessageLogged(RID, b"m", 1_767_225_600, False, None),
        ),
    ],
)
def test_records(line: str, record: object) -> None:
    assert decode_smp_record(line) == record


def test_the_largest_that_can_be_served() -> None:
    body = b64(bytes(16_088))
    assert isinstance(decode_smp_record(f"v3 {R} {b64(b'm')} 1 flags=T {body}"), MessageLogged)
    data = f"{b64(bytes(1000))} {b64(bytes(MAX_LINK_DATA - 1000))}"
    assert isinstance(decode_smp_record(f"LINK {R} {b64(LID)} {data}"), LinkSet)


def test_notifiers() -> None:
    for suffix, service in (("", None), (f" nsrv={b64(SERVICE)}", SERVICE)):
        record = decode_smp_record(f"NOTIFIER {R} {b64(NID)} {b64(OTHER)} {S}{suffix}")
        assert isinstance(record, NotifierSet)
        assert record.notifier is not None
        assert record.notifier.service_id == service
        assert (record.notifier.notifier_id, record.notifier.key) == (NID, OTHER)


@pytest.mark.parametrize(
    "line",
    [
        "NONSENSE",
        "CREATE",
        CREATE.replace(K, "AAAA"),
        CREATE.replace(S, "AAAA"),
        CREATE.replace("rid=", "rid=!"),
        f"{CREATE} status=asleep",
        f"{CREATE} status=blocked,reason=envy",
        f"{CREATE} queue_mode=X",
        f"{CREATE} link_id={b64(LID)}",
        f"{CREATE} and more",
        f"SECURE {R} AAAA",
        f"KEYS {R} ",
        f"BLOCK {R} spam",
        f"QUEUE_SERVICE {R} X {b64(SERVICE)}",
        SERVICE_LINE.replace("role=N", "role=X"),
        f"v3 {R} {b64(b'm')} soon quota",
        f"v2 {R} {b64(b'm')} 1 quota",
        f"DELETE {R} {R}",
        f"TIME {R} {'9' * 30}",
        CREATE.replace(f"rid={R}", f"rid={LONG}"),
        CREATE.replace(f"sid={b64(SID)}", f"sid={LONG}"),
        f"{CREATE} notifier={LONG} {K} {S}",
        f"{CREATE} rsrv={LONG}",
        f"{CREATE} link_id={LONG} queue_data={b64(b'f')} {b64(b'u')}",
        f"{CREATE} link_id={b64(LID)} queue_data={b64(b'f')} {b64(bytes(60_000))}",
        f"LINK {R} {b64(LID)} {b64(b'f')} {b64(bytes(MAX_LINK_DATA))}",
        f"KEYS {R} {','.join([K] * 256)}",
        f"v3 {R} {b64(b'm')} 1 flags=T {b64(bytes(16_089))}",
        f"v3 {R} {LONG} 1 quota",
        f"v1 {b64(NID)} {b64(b'm')} 1 {b64(b'n' * 23)} {META}",
        f"v1 {b64(NID)} {b64(b'm')} 1 {b64(b'n' * 24)} {b64(bytes(145))}",
    ],
)
def test_bad_lines_are_not_quoted(line: str) -> None:
    with pytest.raises(BadLine) as error:
        decode_smp_record(line)
    for secret in (K, S, R, b64(SERVICE)):
        assert secret not in str(error.value)


IDS = st.binary(min_size=1, max_size=32)
SECRETS = st.binary(min_size=32, max_size=32)
KEYS = st.sampled_from([KEY, OTHER])
REASONS = st.builds(
    BLOCKED,
    st.sampled_from(BlockingReason),
    st.none() | st.builds(ClientNotice, st.none() | st.integers(0, 2**40)),
)


@st.composite
def queues(draw: st.DrawFn) -> QueueCreated:
    made = QueueRecord(
        draw(IDS),
        draw(IDS),
        tuple(draw(st.lists(KEYS, min_size=1, max_size=3))),
        draw(SECRETS),
        draw(st.none() | KEYS),
        draw(st.none() | st.sampled_from(QueueMode)),
        service_id=draw(st.none() | IDS),
    )
    if draw(st.booleans()):
        made.notifier = NotifierRecord(draw(IDS), draw(KEYS), draw(SECRETS), draw(st.none() | IDS))
    made.status = draw(st.sampled_from(QueueStatus))
    made.blocked = draw(REASONS) if made.status is QueueStatus.BLOCKED else None
    data = draw(st.none() | st.builds(StoredLinkData, st.binary(), st.binary()))
    if data is not None:
        made.link = LinkRecord.of(draw(IDS), data.fixed)
    return QueueCreated(made, data)


@given(queues())
def test_every_queue_round_trips(record: QueueCreated) -> None:
    assert row(decode_smp_record(encode_smp_record(record))) == row(record)


def test_a_link_that_nobody_can_read_is_left_out() -> None:
    """A link ID may be empty, but neither this router nor the reference reads a line with one."""
    data = StoredLinkData(b"fixed", b"user")
    made = QueueRecord(RID, SID, (KEY,), SECRET, mode=QueueMode.CONTACT)
    made.link = LinkRecord.of(b"", data.fixed)
    record = decode_smp_record(encode_smp_record(QueueCreated(made, data)))
    made.link = None
    assert row(record) == row(QueueCreated(made))


@given(
    st.builds(
        MessageLogged,
        IDS,
        IDS,
        st.integers(-(10**12), 10**12),
        st.booleans(),
        st.binary(),
    )
)
def test_every_message_round_trips(record: MessageLogged) -> None:
    assert decode_smp_record(encode_smp_record(record)) == record


@given(st.text(), st.sampled_from(["CREATE", "LINK", "BLOCK", "v3", "NEW_SERVICE", "KEYS"]))
def test_only_bad_line_escapes(text: str, kind: str) -> None:
    with contextlib.suppress(BadLine):
        decode_smp_record(f"{kind} {text}")
