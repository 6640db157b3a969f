from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import pad
from heliograph.wire.transmissions import (
    MAX_BATCH,
    Session,
    TransmissionError,
    authorized_bytes,
    decode_transmission,
    encode_transmission,
    encode_unauthorized,
    max_transmission_size,
    pack,
    unpack,
)
from tests import strategies as our
from tests.wire.attempt import attempt

SESSION_ID = bytes(range(32))
NTF1, NTF2, NTF3 = (Session.ntf(SESSION_ID, version) for version in (1, 2, 3))
SMP6, SMP7, SMP15, SMP16 = (Session.smp(SESSION_ID, version) for version in (6, 7, 15, 16))
SIGNATURE = b"s" * 64


def test_sessions() -> None:
    for version in our.NTF_VERSION_NUMBERS:
        session = Session.ntf(SESSION_ID, version)
        assert session == Session(
            SESSION_ID, version, 512, version >= 2, version >= 2, service_auth=False
        )
    for version in our.SMP_VERSION_NUMBERS:
        session = Session.smp(SESSION_ID, version)
        assert session == Session(SESSION_ID, version, 16384, version >= 7, True, version >= 16)


@given(
    *(our.sessions, our.shorts, our.shorts, our.bodies),
    *(st.just(b"") | our.authorizations, st.none() | our.service_signatures),
)
def test_round_trip(
    session: Session,
    corr_id: bytes,
    entity_id: bytes,
    command: bytes,
    auth: bytes,
    signature: bytes | None,
) -> None:
    encoded = encode_transmission(session, corr_id, entity_id, command, auth, signature)
    raw = decode_transmission(session, encoded)
    sent = signature if auth and session.service_auth else None
    assert (raw.auth, raw.service_signature) == (auth, sent)
    assert (raw.corr_id, raw.entity_id, raw.command) == (corr_id, entity_id, command)
    assert raw.authorized == authorized_bytes(session, corr_id, entity_id, command)
    assert encode_transmission(session, corr_id, entity_id, command, auth, sent) == encoded


BARE = b"\x01c\x01ePING"
SESSION = b"\x20" + SESSION_ID


@pytest.mark.parametrize(
    ("session", "auth", "signature", "expected"),
    [
        (NTF1, b"", None, b"\x00" + SESSION + BARE),
        (NTF1, b"a" * 64, None, b"\x40" + b"a" * 64 + SESSION + BARE),
        (NTF2, b"", None, b"\x00" + BARE),
        (NTF3, b"a" * 80, None, b"\x50" + b"a" * 80 + BARE),
        (SMP6, b"a" * 114, None, b"\x72" + b"a" * 114 + SESSION + BARE),
        (SMP7, b"a" * 64, None, b"\x40" + b"a" * 64 + BARE),
        (SMP15, b"a" * 64, SIGNATURE, b"\x40" + b"a" * 64 + BARE),
        (SMP16, b"", SIGNATURE, b"\x00" + BARE),
        (SMP16, b"a" * 64, None, b"\x40" + b"a" * 64 + b"0" + BARE),
        (SMP16, b"a" * 64, SIGNATURE, b"\x40" + b"a" * 64 + b"1\x40" + SIGNATURE + BARE),
    ],
)
def test_exact_bytes(
    session: Session, auth: bytes, signature: bytes | None, expected: bytes
) -> None:
    assert encode_transmission(session, b"c", b"e", b"PING", auth, signature) == expected
    raw = decode_transmission(session, expected)
    assert (raw.corr_id, raw.entity_id, raw.command) == (b"c", b"e", b"PING")
    assert raw.authorized == SESSION + BARE
    assert encode_unauthorized(b"c", b"e", b"PING") == BARE


@pytest.mark.parametrize(
    ("session", "data", "error", "corr_id"),
    [
        (NTF3, b"", ErrorCode.BLOCK, b""),
        (NTF3, b"\x01", ErrorCode.BLOCK, b""),
        (NTF3, b"\x00", ErrorCode.BLOCK, b""),
        (NTF3, b"\x00\x01", ErrorCode.BLOCK, b""),
        (NTF3, b"\x00\x01c", ErrorCode.BLOCK, b""),
        (NTF3, b"\x00\x01c\x02e", ErrorCode.BLOCK, b""),
        (NTF3, b"hello", ErrorCode.BLOCK, b""),
        (NTF3, b"\x01a\x01c\x00PING", ErrorCode.BLOCK, b"c"),
        (NTF3, b"\x3f" + b"a" * 63 + b"\x01c\x00PING", ErrorCode.BLOCK, b"c"),
        (NTF1, b"\x00\x01x\x01c\x00PING", ErrorCode.SESSION, b"c"),
        (NTF1, b"\x00\x00\x01c\x00PING", ErrorCode.SESSION, b"c"),
        (NTF1, b"\x01a\x01x\x01c\x00PING", ErrorCode.SESSION, b"c"),
        (NTF1, b"\x00\x01x\x01c", ErrorCode.BLOCK, b""),
        (SMP16, b"\x40" + SIGNATURE, ErrorCode.BLOCK, b""),
        (SMP16, b"\x40" + SIGNATURE + b"2\x01c\x00PING", ErrorCode.BLOCK, b""),
        (SMP16, b"\x40" + SIGNATURE + b"1", ErrorCode.BLOCK, b""),
        (SMP16, b"\x40" + SIGNATURE + b"1\x01s\x01c\x00PING", ErrorCode.BLOCK, b""),
        (SMP16, b"\x40" + SIGNATURE + b"1\x00\x01c\x00PING", ErrorCode.BLOCK, b""),
    ],
)
def test_malformed(session: Session, data: bytes, error: ErrorCode, corr_id: bytes) -> None:
    with pytest.raises(TransmissionError) as caught:
        decode_transmission(session, data)
    assert caught.value.error is error
    assert caught.value.corr_id == corr_id


def test_ids_that_do_not_fit() -> None:
    with pytest.raises(WireError):
        encode_transmission(NTF3, bytes(256), b"", b"PING")


@given(our.sessions, st.binary(max_size=200))
def test_any_bytes(session: Session, data: bytes) -> None:
    raw, error = attempt(decode_transmission, session, data)
    if raw is None:
        assert error in (ErrorCode.BLOCK, ErrorCode.SESSION)
        return
    encoded = encode_transmission(
        *(session, raw.corr_id, raw.entity_id),
        *(raw.command, raw.auth, raw.service_signature),
    )
    assert encoded == data


# Batches


def folded(session: Session, transmissions: Sequence[bytes]) -> list[list[bytes]]:
    """The reference's right fold: the last transmissions fill the last block first."""
    room = session.block_size - 19
    batches: list[list[bytes]] = []
    batch: list[bytes] = []
    for transmission in transmissions[::-1]:
        used = sum(len(item) + 2 for item in batch)
        if batch and (used + len(transmission) + 2 > room or len(batch) == 255):
            batches.insert(0, batch)
            batch = []
        batch.insert(0, transmission)
    return [batch, *batches] if batch else batches


ntf_items = st.lists(st.binary(max_size=491), max_size=30)
smp_sizes = st.lists(st.integers(0, 16363) | st.integers(0, 90), max_size=40)


@given(ntf_items, st.sampled_from([NTF2, NTF3]))
def test_ntf_batches(items: list[bytes], session: Session) -> None:
    check_batches(session, items)


@given(smp_sizes, st.sampled_from([SMP6, SMP16]))
def test_smp_batches(sizes: list[int], session: Session) -> None:
    check_batches(session, [bytes((index,)) * size for index, size in enumerate(sizes)])


@pytest.mark.parametrize("count", [0, 1, 254, 255, 256, 510, 511, 1000])
def test_at_most_255_in_a_batch(count: int) -> None:
    items = [index.to_bytes(2) for index in range(count)]
    contents = check_batches(SMP16, items)
    assert [content[0] for content in contents] == [
        size for size in (count % 255, *[255] * (count // 255)) if size
    ]


def check_batches(session: Session, items: list[bytes]) -> list[bytes]:
    contents = pack(session, items)
    assert [unpack(session, content) for content in contents] == folded(session, items)
    assert [item for content in contents for item in unpack(session, content)] == items
    for content in contents:
        assert content[0] <= MAX_BATCH
        assert len(content) <= session.block_size - 18
        assert len(pad(content, session.block_size - 16)) == session.block_size - 16
    return contents


@given(st.lists(st.binary(max_size=510), max_size=9))
def test_without_batches_each_transmission_is_a_block(items: list[bytes]) -> None:
    contents = pack(NTF1, items)
    assert contents == items
    for content in contents:
        assert len(pad(content, 512)) == 512
        assert unpack(NTF1, content) == [content]


@pytest.mark.parametrize(
    ("session", "size"), [(NTF1, 510), (NTF2, 491), (NTF3, 491), (SMP6, 16363), (SMP16, 16363)]
)
def test_longest_transmission(session: Session, size: int) -> None:
    assert max_transmission_size(session) == size
    (content,) = pack(session, [bytes(size)])
    assert unpack(session, content) == [bytes(size)]
    with pytest.raises(WireError) as caught:
        pack(session, [b"", bytes(size + 1)])
    assert caught.value.error is ErrorCode.LARGE_MSG


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\x00\x00",
        b"\x01",
        b"\x01\x00",
        b"\x01\x00\x05hell",
        b"\x02\x00\x01a",
        b"\x02\x00\x01a\x00",
        b"\x01\x00\x01a surplus",
        b"\xff" * 40,
    ],
)
def test_batch_malformed(content: bytes) -> None:
    with pytest.raises(TransmissionError) as caught:
        unpack(NTF3, content)
    assert caught.value.error is ErrorCode.BLOCK
    assert caught.value.corr_id == b""


@given(st.binary(max_size=100))
def test_any_content(content: bytes) -> None:
    try:
        items = unpack(SMP16, content)
    except TransmissionError:
        return
    assert pack(SMP16, items) == [content]
