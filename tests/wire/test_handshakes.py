import pytest
from hypothesis import given, strategies as st

from heliograph.wire import handshakes
from heliograph.wire.errors import ErrorCode, TransportError, WireError
from heliograph.wire.handshakes import (
    CertChainPubKey,
    ClientService,
    NtfClientHandshake,
    NtfServerHandshake,
    ServiceAccepted,
    ServiceRefused,
    ServiceRole,
    SmpClientHandshake,
    SmpServerHandshake,
)
from heliograph.wire.keys import SPKI_PREFIX, Algorithm
from heliograph.wire.versions import VersionRange
from tests import strategies as our
from tests.wire.attempt import attempt

X = SPKI_PREFIX[Algorithm.X25519] + bytes(32)
AUTH = CertChainPubKey((b"leaf", b"ca"), b"signed")
AUTH_BYTES = b"\x02\x00\x04leaf\x00\x02ca\x00\x06signed"
tails = st.binary(max_size=20)


# NTF


@given(our.version_ranges, our.shorts, our.larges, tails)
def test_ntf_server(versions: VersionRange, session_id: bytes, key: bytes, tail: bytes) -> None:
    value = NtfServerHandshake(versions, session_id, key if versions.max >= 2 else None)
    assert handshakes.decode_ntf_server(handshakes.encode_ntf_server(value) + tail) == value


@given(our.u16s, our.shorts, tails)
def test_ntf_client(version: int, fingerprint: bytes, tail: bytes) -> None:
    value = NtfClientHandshake(version, fingerprint)
    assert handshakes.decode_ntf_client(handshakes.encode_ntf_client(value) + tail) == value


def test_ntf_exact_bytes() -> None:
    modern = NtfServerHandshake(VersionRange(1, 3), b"id", b"key")
    assert handshakes.encode_ntf_server(modern) == b"\0\x01\0\x03\x02id\0\x03key"
    legacy = NtfServerHandshake(VersionRange(1, 1), b"id", b"key")
    assert handshakes.encode_ntf_server(legacy) == b"\0\x01\0\x01\x02id"
    keyless = NtfServerHandshake(VersionRange(1, 3), b"id")
    assert handshakes.encode_ntf_server(keyless) == b"\0\x01\0\x03\x02id"
    assert handshakes.encode_ntf_client(NtfClientHandshake(3, b"fp")) == b"\0\x03\x02fp"


@pytest.mark.parametrize(
    "content", [b"", b"\0\x01\0", b"\0\x03\0\x01\x00", b"\0\x01\0\x03\x02id", b"\0\x01\0\x01\x02i"]
)
def test_ntf_server_malformed(content: bytes) -> None:
    with pytest.raises(WireError) as caught:
        handshakes.decode_ntf_server(content)
    assert caught.value.error is ErrorCode.BLOCK


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\x03", b"\0\x03\x02f"])
def test_ntf_client_malformed(content: bytes) -> None:
    with pytest.raises(WireError) as caught:
        handshakes.decode_ntf_client(content)
    assert caught.value.error is ErrorCode.BLOCK


# SMP


@given(our.version_ranges, our.shorts, st.none() | our.cert_chain_keys)
def test_smp_server(
    versions: VersionRange, session_id: bytes, auth: CertChainPubKey | None
) -> None:
    value = SmpServerHandshake(versions, session_id, auth if versions.max >= 7 else None)
    encoded = handshakes.encode_smp_server(value)
    assert handshakes.decode_smp_server(encoded) == value
    if value.auth is not None:
        assert handshakes.decode_smp_server(encoded + b"tail") == value


@given(
    *(our.smp_versions, our.shorts, st.none() | our.x25519_keys, st.booleans()),
    *(st.none() | our.client_services, tails),
)
def test_smp_client(
    version: int,
    fingerprint: bytes,
    key: bytes | None,
    proxy: bool,
    service: ClientService | None,
    tail: bytes,
) -> None:
    sent = SmpClientHandshake(version, fingerprint, key, proxy, service)
    received = SmpClientHandshake(
        *(version, fingerprint, key if version >= 7 else None),
        *(proxy and version >= 14, service if version >= 16 else None),
    )
    encoded = handshakes.encode_smp_client(sent)
    assert handshakes.decode_smp_client(encoded + tail) == received
    assert handshakes.encode_smp_client(received) == encoded


def test_smp_server_exact_bytes() -> None:
    modern = SmpServerHandshake(VersionRange(6, 19), b"id", AUTH)
    assert handshakes.encode_smp_server(modern) == b"\0\x06\0\x13\x02id" + AUTH_BYTES
    legacy = SmpServerHandshake(VersionRange(6, 6), b"id", AUTH)
    assert handshakes.encode_smp_server(legacy) == b"\0\x06\0\x06\x02id"
    assert handshakes.decode_smp_server(b"\0\x06\0\x06\x02id tail").auth is None


FULL = SmpClientHandshake(0, b"fp", X, True, ClientService(ServiceRole.NOTIFIER, AUTH))


@pytest.mark.parametrize(
    ("versions", "tail"),
    [
        (range(6, 7), b""),
        (range(7, 14), b"\x2c" + X),
        (range(14, 16), b"\x2c" + X + b"T"),
        (range(16, 20), b"\x2c" + X + b"T1N" + AUTH_BYTES),
    ],
)
def test_smp_client_exact_bytes(versions: range, tail: bytes) -> None:
    for version in versions:
        value = SmpClientHandshake(version, b"fp", X, True, FULL.service)
        assert handshakes.encode_smp_client(value) == bytes((0, version)) + b"\x02fp" + tail


def test_smp_client_without_a_key() -> None:
    assert handshakes.decode_smp_client(b"\0\x07\x02fp") == SmpClientHandshake(7, b"fp")
    assert handshakes.decode_smp_client(b"\0\x12\x02fpF0") == SmpClientHandshake(18, b"fp")
    assert handshakes.encode_smp_client(SmpClientHandshake(18, b"fp")) == b"\0\x12\x02fpF0"


@pytest.mark.parametrize("role", ServiceRole)
def test_service_roles(role: ServiceRole) -> None:
    content = b"\0\x12\x02fpF1" + role.value + AUTH_BYTES
    assert handshakes.decode_smp_client(content).service == ClientService(role, AUTH)


@pytest.mark.parametrize(
    "content",
    [
        b"\0\x06\0\x12",
        b"\0\x06\0\x12\x02id\x00",
        b"\0\x06\0\x12\x02id\x01\0\x04leaf",
        b"\0\x06\0\x12\x02id\x01\0\x05leaf",
    ],
)
def test_smp_server_malformed(content: bytes) -> None:
    with pytest.raises(WireError) as caught:
        handshakes.decode_smp_server(content)
    assert caught.value.error is ErrorCode.BLOCK


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\x12\x02fp",
        b"\0\x12\x02fpX0",
        b"\0\x12\x02fpF",
        b"\0\x12\x02fpF2",
        b"\0\x12\x02fpF1X" + AUTH_BYTES,
        b"\0\x12\x02fpF1N\x00",
    ],
)
def test_smp_client_malformed(content: bytes) -> None:
    with pytest.raises(WireError) as caught:
        handshakes.decode_smp_client(content)
    assert caught.value.error is ErrorCode.BLOCK


# The third message


@given(our.shorts, tails)
def test_service_accepted(service_id: bytes, tail: bytes) -> None:
    value = ServiceAccepted(service_id)
    encoded = handshakes.encode_service_response(value)
    assert encoded == b"R" + bytes((len(service_id),)) + service_id
    assert handshakes.decode_service_response(encoded + tail) == value


@pytest.mark.parametrize("error", TransportError)
def test_service_refused(error: TransportError) -> None:
    value = ServiceRefused(error)
    encoded = handshakes.encode_service_response(value)
    assert encoded == b"E" + error.value.encode()
    assert handshakes.decode_service_response(encoded) == value
    assert handshakes.decode_service_response(encoded + b" more") == value


@pytest.mark.parametrize("content", [b"", b"X", b"R", b"R\x01", b"E", b"EWHAT", b"EHANDSHAKE"])
def test_service_response_malformed(content: bytes) -> None:
    with pytest.raises(WireError) as caught:
        handshakes.decode_service_response(content)
    assert caught.value.error is ErrorCode.BLOCK


@given(st.binary(max_size=80))
def test_any_bytes(content: bytes) -> None:
    for decode in (
        handshakes.decode_ntf_server,
        handshakes.decode_ntf_client,
        handshakes.decode_smp_server,
        handshakes.decode_smp_client,
        handshakes.decode_service_response,
    ):
        _, error = attempt(decode, content)
        assert error in (None, ErrorCode.BLOCK)
