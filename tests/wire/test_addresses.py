from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.wire.addresses import (
    Host,
    HostKind,
    Scheme,
    ServerAddress,
    SMPQueueNtf,
    decode_address,
    decode_host,
    decode_queue,
    encode_address,
    encode_queue,
    host_codec,
    smp_queue_ntf,
    smp_server,
    split_vapid,
    valid_password,
    with_vapid,
)
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import Codec, Reader, b64encode
from tests import strategies as our
from tests.wire.attempt import attempt

FINGERPRINT = bytes(range(32))
KEY_HASH = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
A = f"smp://{KEY_HASH}@"


def address(*hosts: Host, port: str = "", password: str | None = None) -> ServerAddress:
    return ServerAddress(Scheme.SMP, hosts, port, FINGERPRINT, password)


EXAMPLE = Host(HostKind.DOMAIN, "smp.example")
ONION = Host(HostKind.ONION, "abc234.onion")
V4 = Host(HostKind.IPV4, "192.0.2.1")
V6 = Host(HostKind.IPV6, "2001:db8::1")


# Text


@given(our.addresses)
def test_text_round_trip(value: ServerAddress) -> None:
    assert decode_address(str(value)) == value
    if not value.port or value.hosts[-1].kind is not HostKind.IPV6:
        assert decode_address(encode_address(value)) == value
        assert str(value) == encode_address(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"{A}smp.example", address(EXAMPLE)),
        (f"{A}smp.example:5223", address(EXAMPLE, port="5223")),
        (f"{A}smp.example,abc234.onion:443", address(EXAMPLE, ONION, port="443")),
        (f"{A}192.0.2.1", address(V4)),
        (f"{A}2001:db8::1", address(V6)),
        (f"{A}[2001:db8::1]:443", address(V6, port="443")),
        (f"{A}2001:DB8:0::0:1,192.0.2.1:7", address(V6, V4, port="7")),
        (f"smp://{KEY_HASH}:pass,word!@smp.example", address(EXAMPLE, password="pass,word!")),
        (f"smp://{KEY_HASH.rstrip('=')}@smp.example", address(EXAMPLE)),
        (f"{A}smp.example:007", address(EXAMPLE, port="7")),
    ],
)
def test_text(text: str, value: ServerAddress) -> None:
    assert decode_address(text) == value


@pytest.mark.parametrize(
    ("text", "kind", "canonical"),
    [
        ("127.0.0.1", HostKind.IPV4, "127.0.0.1"),
        ("127.000.00.01", HostKind.IPV4, "127.0.0.1"),
        ("256.1.1.1", HostKind.DOMAIN, "256.1.1.1"),
        ("1000.1.1.1", HostKind.DOMAIN, "1000.1.1.1"),
        ("1.2.3", HostKind.DOMAIN, "1.2.3"),
        ("1.2.3.", HostKind.DOMAIN, "1.2.3."),
        ("::", HostKind.IPV6, "::"),
        ("::1", HostKind.IPV6, "::1"),
        ("[::1]", HostKind.IPV6, "::1"),
        ("::ffff", HostKind.IPV6, "::ffff"),
        ("1:0:0:2:0:0:0:3", HostKind.IPV6, "1:0:0:2::3"),
        ("[::ffff:192.0.2.1]", HostKind.IPV6, "::ffff:192.0.2.1"),
        ("::ffff:192.0.2.1", HostKind.IPV6, "::ffff:192.0.2.1"),
        ("::ffff:c000:201", HostKind.IPV6, "::ffff:192.0.2.1"),
        ("::c000:201", HostKind.IPV6, "::192.0.2.1"),
        ("abc", HostKind.DOMAIN, "abc"),
        ("abc.example", HostKind.DOMAIN, "abc.example"),
        ("face.1.2.3", HostKind.DOMAIN, "face.1.2.3"),
        ("localhost", HostKind.DOMAIN, "localhost"),
        ("[]", HostKind.DOMAIN, "[]"),
        ("[x]", HostKind.DOMAIN, "[x]"),
        ("1" * 5000 + ".0.0.1", HostKind.DOMAIN, "1" * 5000 + ".0.0.1"),
        ("bücher.example", HostKind.DOMAIN, "bücher.example"),
        (".onion", HostKind.ONION, ".onion"),
        ("abc.onion", HostKind.ONION, "abc.onion"),
    ],
)
def test_hosts(text: str, kind: HostKind, canonical: str) -> None:
    host = decode_host(text)
    assert host == Host(kind, canonical)
    assert str(host) == canonical
    assert decode_host(canonical) == host


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "a:1", "a b", "a,b", "a/b", "a#b", "a;b", "\t"),
        *("1.2.3.256", "1.2.3.4567", "1.2.3.4.example", "[::1", "[fe80::1%eth0]"),
        *("fe80::1%eth0", ":::", "::1.2.3", "::1.2.3.999", "1:2:3:4:5:6:7:8:9"),
        *("ABC.onion", "a.b.onion", "a.onion.onion", "a.onion.example", "a\ud800"),
    ],
)
def test_host_malformed(text: str) -> None:
    with pytest.raises(WireError):
        decode_host(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "smp", "smp://", f"smp://@{KEY_HASH}", "smp://@smp.example", "smp://=@smp.example"),
        *(A, f"{A}:5223", f"{A}smp.example:", f"{A}smp.example:abc", f"{A}smp.example:1:2"),
        *(f"{A}smp.example:-1", f"{A}smp.example:12345678901", f"{A}smp.example/", f"{A}a,"),
        *(f"{A}a,,b", f"{A}a b", f"http://{KEY_HASH}@a", f"xftp://{KEY_HASH}@a"),
        *(f"smp://{KEY_HASH}:@a", f"smp://{KEY_HASH}:a b@a", f"smp://{KEY_HASH}:a:b@a"),
        *(f"smp://{KEY_HASH}:a/b@a", f"smp://{KEY_HASH}:a\x7f@a", f"smp://{KEY_HASH}:\ud800@a"),
        *(f"smp:/{KEY_HASH}@a", "smp://A@a", "smp://AAA@a/", "smp://A!@a", f"{A}a.onion.onion"),
        f"{A}a\ud800",
    ],
)
def test_text_malformed(text: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_address(text)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    for decode in (decode_address, decode_queue, decode_host):
        attempt(decode, text)


@given(st.text(max_size=30))
def test_any_hosts(text: str) -> None:
    try:
        value = decode_address(A + text)
    except WireError:
        return
    assert decode_address(str(value)) == value
    smp_server.encode(value)


def test_for_people_an_ipv6_host_before_a_port_has_brackets() -> None:
    value = address(EXAMPLE, V6, port="443")
    assert encode_address(value) == f"{A}smp.example,2001:db8::1:443"
    assert str(value) == f"{A}smp.example,[2001:db8::1]:443"


def test_a_queue_there_can_be_found_again() -> None:
    queue = SMPQueueNtf(address(V6, port="5224"), b"id")
    assert decode_queue(encode_queue(queue)) == queue


@pytest.mark.parametrize(
    ("scheme", "port", "expected"),
    [
        (Scheme.SMP, "", 5223),
        (Scheme.NTF, "", 443),
        (Scheme.SMP, "7", 7),
        (Scheme.NTF, "65535", 65535),
    ],
)
def test_effective_port(scheme: Scheme, port: str, expected: int) -> None:
    assert ServerAddress(scheme, (V4,), port, FINGERPRINT).effective_port == expected


@pytest.mark.parametrize("port", ["65536", "-1", "x", " 1", "1_0", "\u0661", "1" * 255])
def test_effective_port_malformed(port: str) -> None:
    with pytest.raises(WireError):
        _ = address(V4, port=port).effective_port


def test_without_password() -> None:
    assert address(V4, password="x").without_password() == address(V4)


def test_passwords() -> None:
    """Printable Latin-1 without space and separators, byte by byte."""
    allowed = {byte for byte in range(256) if valid_password(bytes((byte,)))}
    assert allowed == {
        byte
        for byte in range(256)
        if (char := chr(byte)).isprintable() and not char.isspace() and char not in "@:/"
    }
    assert valid_password(b"")
    assert not valid_password(b"ok but")


# Binary


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (host_codec, our.hosts),
        (smp_server, our.smp_servers),
        (smp_queue_ntf, our.queues),
    ],
    ids=["host", "server", "queue"],
)
@given(data=st.data())
def test_binary_round_trip(
    codec: Codec[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    reader = Reader(codec.encode(value))
    assert codec.decode(reader) == value
    reader.end()


def test_binary() -> None:
    data = b"\x02\x0bsmp.example\x07a.onion\x00\x20" + FINGERPRINT
    value = address(EXAMPLE, Host(HostKind.ONION, "a.onion"))
    assert smp_server.encode(value) == data
    assert smp_server.decode(Reader(data)) == value
    queue = SMPQueueNtf(value, b"id")
    assert smp_queue_ntf.encode(queue) == data + b"\x02id"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x00",
        b"\x01\x00\x00\x00",
        b"\x01\x01:\x00\x00",
        b"\x01\x01\xff\x00\x00",
        b"\x01\x01a\x01\xff\x00",
        b"\x01\x01a\x00",
    ],
)
def test_binary_malformed(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        smp_server.decode(Reader(data, ErrorCode.BLOCK))
    assert caught.value.error is ErrorCode.BLOCK


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    try:
        value = smp_queue_ntf.decode(Reader(data))
    except WireError:
        return
    assert smp_queue_ntf.decode(Reader(smp_queue_ntf.encode(value))) == value


def test_long_host_does_not_fit() -> None:
    with pytest.raises(WireError):
        host_codec.encode(decode_host("a" * 256))


# Queues


@given(our.text_queues)
def test_queue_round_trip(queue: SMPQueueNtf) -> None:
    assert decode_queue(encode_queue(queue)) == queue


def test_queue() -> None:
    queue = SMPQueueNtf(address(EXAMPLE, port="5223"), b"id")
    assert encode_queue(queue) == f"{A}smp.example:5223/aWQ="


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", f"{A}a", f"{A}a/", f"{A}a/a/aWQ=", f"{A}a/!"),
        *(f"ntf://{KEY_HASH}@a/aWQ=", f"smp://{KEY_HASH}:pw@a/aWQ="),
    ],
)
def test_queue_malformed(text: str) -> None:
    with pytest.raises(WireError):
        decode_queue(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ntf://{}@h:99999", "port"),
        ("ntf://{}@h:65536", "port"),
        ("ntf://{}@h:0", "port"),
        ("ntf://AAA=@h", "fingerprint"),
        ("ntf://{}AA==@h", "fingerprint"),
    ],
)
def test_addresses_that_cannot_be_connected_to(text: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_address(text.format(b64encode(bytes(range(32)))))


VAPID = bytes([4, *range(64)])
NTF_TEXT = f"ntf://{KEY_HASH}@ntf.example:443"


@pytest.mark.parametrize("padded", [True, False])
def test_a_vapid_key_in_an_address(padded: bool) -> None:
    key = b64encode(VAPID) if padded else b64encode(VAPID).rstrip("=")
    text = with_vapid(decode_address(NTF_TEXT), key)
    assert text == f"{NTF_TEXT}/?vapid={key}", "as the reference writes and reads it"
    for spelling in (text, f"{NTF_TEXT}/?other=AAAA&vapid={key}&more=1"):
        assert split_vapid(spelling) == (NTF_TEXT, VAPID)
        assert decode_address(spelling) == decode_address(NTF_TEXT)


@pytest.mark.parametrize("text", [NTF_TEXT, f"{A}a/?vapid=AAAA", f"{NTF_TEXT}?vapid=AAAA"])
def test_addresses_without_a_vapid_key(text: str) -> None:
    assert split_vapid(text) == (text, None)


def test_parameters_of_later_versions() -> None:
    assert split_vapid(f"{NTF_TEXT}/?other=AAAA") == (NTF_TEXT, None)


@pytest.mark.parametrize("key", [b"\4", bytes(65), VAPID + b"x"])
def test_a_malformed_vapid_key(key: bytes) -> None:
    for text in (
        f"{NTF_TEXT}/?vapid={b64encode(key)}",
        f"{NTF_TEXT}/?vapid=",
        f"{NTF_TEXT}/?vapid=!",
    ):
        with pytest.raises(WireError):
            decode_address(text)
