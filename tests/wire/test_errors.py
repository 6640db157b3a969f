import pytest
from hypothesis import given, strategies as st

from heliograph.wire.errors import (
    BLOCKED,
    PROXY,
    STORE,
    BlockingReason,
    BrokerError,
    ClientNotice,
    ErrorCode,
    ErrorType,
    ProxyFailure,
    ProxyProtocolError,
    TransportError,
    WireError,
    decode_error,
    decode_transport_error,
    encode_error,
    encode_transport_error,
)
from tests import strategies as our


@given(our.error_types)
def test_round_trip(error: ErrorType) -> None:
    assert decode_error(encode_error(error)) == error


@pytest.mark.parametrize("code", ErrorCode)
def test_codes(code: ErrorCode) -> None:
    assert encode_error(code) == code.value.encode()
    assert decode_error(code.value.encode()) is code


@pytest.mark.parametrize("error", TransportError)
def test_transport_errors(error: TransportError) -> None:
    assert decode_transport_error(encode_transport_error(error)) is error
    broker = PROXY(BrokerError("TRANSPORT", error))
    assert decode_error(encode_error(broker)) == broker


EXACT: list[tuple[bytes, ErrorType]] = [
    (b"BLOCKED reason=spam", BLOCKED(BlockingReason.SPAM)),
    (b"BLOCKED reason=content,notice={}", BLOCKED(BlockingReason.CONTENT, ClientNotice())),
    (
        b'BLOCKED reason=spam,notice={"ttl":86400}',
        BLOCKED(BlockingReason.SPAM, ClientNotice(86400)),
    ),
    (b"STORE abc d", STORE("abc d")),
    (b"STORE ", STORE("")),
    (b"PROXY BASIC_AUTH", PROXY(ProxyFailure.BASIC_AUTH)),
    (b"PROXY NO_SESSION", PROXY(ProxyFailure.NO_SESSION)),
    (b"PROXY PROTOCOL AUTH", PROXY(ProxyProtocolError(ErrorCode.AUTH))),
    (
        b"PROXY PROTOCOL PROXY PROTOCOL AUTH",
        PROXY(ProxyProtocolError(PROXY(ProxyProtocolError(ErrorCode.AUTH)))),
    ),
    (
        b"PROXY PROTOCOL PROXY NO_SESSION",
        PROXY(ProxyProtocolError(PROXY(ProxyFailure.NO_SESSION))),
    ),
    (b"PROXY BROKER TIMEOUT", PROXY(BrokerError("TIMEOUT"))),
    (b"PROXY BROKER HOST", PROXY(BrokerError("HOST"))),
    (b"PROXY BROKER NO_SERVICE", PROXY(BrokerError("NO_SERVICE"))),
    (b"PROXY BROKER RESPONSE \x02hi", PROXY(BrokerError("RESPONSE", "hi"))),
    (b"PROXY BROKER UNEXPECTED \x00", PROXY(BrokerError("UNEXPECTED", ""))),
    (b"PROXY BROKER NETWORK", PROXY(BrokerError("NETWORK"))),
    (b"PROXY BROKER NETWORK FAILED", PROXY(BrokerError("NETWORK", "FAILED"))),
    (b"PROXY BROKER NETWORK TLS \x03a b", PROXY(BrokerError("NETWORK", "TLS a b"))),
    (
        b"PROXY BROKER TRANSPORT HANDSHAKE IDENTITY",
        PROXY(BrokerError("TRANSPORT", TransportError.HANDSHAKE_IDENTITY)),
    ),
]


@pytest.mark.parametrize(("data", "error"), EXACT)
def test_exact_bytes(data: bytes, error: ErrorType) -> None:
    assert decode_error(data) == error
    assert encode_error(error) == data


def test_the_older_name_of_no_entity() -> None:
    assert decode_error(b"CMD NO_QUEUE") is ErrorCode.CMD_NO_ENTITY


def test_text_that_is_not_utf8_is_replaced() -> None:
    assert decode_error(b"STORE \xff") == STORE("\ufffd")
    assert encode_error(STORE("\ud800")) == b"STORE ?"


def test_a_long_text_is_cut() -> None:
    error = PROXY(BrokerError("RESPONSE", "x" * 300))
    assert encode_error(error) == b"PROXY BROKER RESPONSE \xff" + b"x" * 255


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b" ", b"auth", b"AUTH ", b"AUTH x", b"CMD", b"CMD ", b"CMD WHAT", b"STORE"),
        *(b"BLOCKED", b"BLOCKED spam", b"BLOCKED reason=", b"BLOCKED reason=ham"),
        *(b"BLOCKED reason=\xff", b"BLOCKED reason=spam,", b"BLOCKED reason=spam,notice="),
        *(b"BLOCKED reason=spam,notice=[]", b"BLOCKED reason=spam,notice=" + b"[" * 100_000),
        *(b'BLOCKED reason=spam,notice={"ttl":"1"}', b'BLOCKED reason=spam,notice={"ttl":true}'),
        b'BLOCKED reason=spam,notice={"ttl":9223372036854775808}',
        *(b"PROXY", b"PROXY ", b"PROXY WHAT", b"PROXY PROTOCOL", b"PROXY PROTOCOL WHAT"),
        b"PROXY PROTOCOL " * 9 + b"AUTH",
        *(b"PROXY BROKER", b"PROXY BROKER WHAT", b"PROXY BROKER TIMEOUT x"),
        *(b"PROXY BROKER RESPONSE", b"PROXY BROKER RESPONSE \x03hi"),
        *(b"PROXY BROKER RESPONSE \x01hi", b"PROXY BROKER TRANSPORT", b"PROXY BROKER NETWORK "),
        *(b"PROXY BROKER NETWORK WHAT", b"PROXY BROKER NETWORK FAILED x"),
        *(b"PROXY BROKER NETWORK TLS", b"PROXY BROKER NETWORK TLS \x05hi"),
    ],
)
def test_malformed(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode_error(data)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


def test_nesting_is_bounded() -> None:
    with pytest.raises(WireError):
        decode_error(b"PROXY PROTOCOL " * 5000 + b"AUTH")


@pytest.mark.parametrize("data", [b"", b"BLOCK ", b"HANDSHAKE", b"HANDSHAKE WHAT"])
def test_transport_error_malformed(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_transport_error(data)


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    try:
        error = decode_error(data)
    except WireError:
        return
    assert decode_error(encode_error(error)) == error


def test_the_exception_says_what_it_becomes() -> None:
    assert str(WireError(ErrorCode.CMD_SYNTAX)) == "CMD SYNTAX"
    assert str(WireError(ErrorCode.CMD_SYNTAX, "why")) == "why"
    assert WireError(STORE("x")).error == STORE("x")
