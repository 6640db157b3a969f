from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import (
    Codec,
    Reader,
    b64decode,
    b64encode,
    boolean,
    encode_large,
    encode_short,
    i64,
    large,
    list_of,
    literal,
    maybe,
    pad,
    raw,
    short,
    tail,
    time,
    u8,
    u16,
    u32,
    unpad,
)
from tests import strategies as our
from tests.wire.attempt import attempt

VALUES: dict[str, tuple[Codec[Any], st.SearchStrategy[Any]]] = {
    "u8": (u8, st.integers(0, 2**8 - 1)),
    "u16": (u16, our.u16s),
    "u32": (u32, st.integers(0, 2**32 - 1)),
    "i64": (i64, our.i64s),
    "time": (time, our.i64s),
    "bool": (boolean, st.booleans()),
    "str": (short, st.binary(max_size=255)),
    "large": (large, our.larges),
    "tail": (tail, st.binary()),
    "24 bytes": (raw(24), our.nonces),
    "maybe(str)": (maybe(short), st.none() | our.shorts),
    "list(str)": (list_of(short), st.lists(our.shorts, min_size=1, max_size=9).map(tuple)),
    "`T`": (literal(b"T"), st.none()),
}


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    codec, values = VALUES[name]
    value = data.draw(values)
    encoded = codec.encode(value)
    reader = Reader(encoded)
    assert codec.name == name
    assert codec.decode(reader) == value
    reader.end()


@pytest.mark.parametrize("name", VALUES)
@given(data=st.binary(max_size=80))
def test_any_bytes_are_refused_or_canonical(name: str, data: bytes) -> None:
    codec, _ = VALUES[name]
    reader = Reader(data, ErrorCode.BLOCK)
    value, error = attempt(codec.decode, reader)
    if error is not None:
        assert error is ErrorCode.BLOCK
    else:
        assert codec.encode(value) == data[: reader.pos]


@pytest.mark.parametrize(
    ("codec", "value", "expected"),
    [
        (u8, 255, "ff"),
        (u16, 258, "0102"),
        (u32, 1, "00000001"),
        (i64, -1, "ffffffffffffffff"),
        (time, 1700000000, "000000006553f100"),
        (boolean, True, "54"),
        (boolean, False, "46"),
        (short, b"abc", "03616263"),
        (large, b"abc", "0003616263"),
        (maybe(short), None, "30"),
        (maybe(short), b"", "3100"),
        (list_of(short), (b"a", b"bc"), "020161026263"),
        (list_of(short, least=0), (), "00"),
    ],
)
def test_exact_bytes(codec: Codec[Any], value: object, expected: str) -> None:
    assert codec.encode(value).hex() == expected
    assert codec.decode(Reader(bytes.fromhex(expected))) == value


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (u8, b""),
        (u16, b"\0"),
        (u32, b"\0\0\0"),
        (i64, bytes(7)),
        (boolean, b"t"),
        (boolean, b""),
        (short, b"\x04abc"),
        (large, b"\x00\x04abc"),
        (raw(3), b"ab"),
        (literal(b"T"), b"S"),
        (maybe(short), b"2"),
        (maybe(short), b""),
        (list_of(short), b"\x00"),
        (list_of(short), b"\x02\x00"),
    ],
)
def test_malformed(codec: Codec[Any], data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        codec.decode(Reader(data))
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (u8, 256),
        (u8, -1),
        (u16, 65536),
        (u32, -1),
        (i64, 2**63),
        (i64, -(2**63) - 1),
        (short, bytes(256)),
        (large, bytes(65536)),
        (raw(3), b"ab"),
        (list_of(u8), ()),
        (list_of(u8), (0,) * 256),
    ],
)
def test_values_that_do_not_fit(codec: Codec[Any], value: object) -> None:
    with pytest.raises(WireError):
        codec.encode(value)


def test_longest_strings() -> None:
    assert encode_short(bytes(255)) == b"\xff" + bytes(255)
    assert encode_large(bytes(65535)) == b"\xff\xff" + bytes(65535)


def test_reader_reports_what_is_left() -> None:
    reader = Reader(b"abc")
    assert reader.take(2) == b"ab"
    with pytest.raises(WireError, match="1 surplus bytes"):
        reader.end()
    with pytest.raises(WireError, match="2 bytes wanted, 1 left"):
        reader.take(2)
    assert reader.tail() == b"c"
    reader.end()
    assert reader.tail() == b""


@given(st.binary(max_size=300), st.integers(0, 300))
def test_pad_round_trip(message: bytes, room: int) -> None:
    size = len(message) + 2 + room
    padded = pad(message, size)
    assert len(padded) == size
    assert padded.endswith(b"#" * room)
    assert unpad(padded) == message


@given(st.binary(min_size=1, max_size=40))
def test_pad_refuses_a_message_that_is_too_long(message: bytes) -> None:
    with pytest.raises(WireError) as caught:
        pad(message, len(message) + 1)
    assert caught.value.error is ErrorCode.LARGE_MSG


def test_longest_padded_message() -> None:
    assert len(pad(bytes(65533), 65535)) == 65535
    with pytest.raises(WireError):
        pad(bytes(65534), 70000)


@pytest.mark.parametrize("padded", [b"", b"\0", b"\0\x01", b"\xff\xff" + b"#" * 510])
def test_unpad_malformed(padded: bytes) -> None:
    with pytest.raises(WireError) as caught:
        unpad(padded)
    assert caught.value.error is ErrorCode.BLOCK


@given(st.binary(min_size=1))
def test_base64_with_and_without_padding(data: bytes) -> None:
    text = b64encode(data)
    assert b64decode(text) == data
    assert b64decode(text.rstrip("=")) == data


@pytest.mark.parametrize(
    "text",
    [
        *("", "=", "====", "a", "YQ=", "YQ===", "YWI==", "YQ==YQ==", "YR==", "YWJ="),
        *("Y Q=", "YQ\n", "+/+/", "é", "\ud800", "YWJj!"),
    ],
)
def test_base64_malformed(text: str) -> None:
    with pytest.raises(WireError):
        b64decode(text)


@given(st.text(max_size=12))
def test_base64_is_refused_or_canonical(text: str) -> None:
    try:
        data = b64decode(text)
    except WireError:
        return
    assert b64encode(data).rstrip("=") == text.rstrip("=")
