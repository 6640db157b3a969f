from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.wire import ntf
from heliograph.wire.addresses import Host, HostKind, Scheme, ServerAddress, SMPQueueNtf
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import PKCS8_PREFIX, SPKI_PREFIX, Algorithm
from heliograph.wire.ntf import NTF_COMMANDS, NTF_RESPONSES
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    NtfSubStatus,
    PushProvider,
    SubscriptionState,
    TokenStatus,
)
from heliograph.wire.table import Credentials, Table
from tests import strategies as our
from tests.wire.attempt import attempt

BY_TYPE = our.NTF_COMMANDS | our.NTF_RESPONSES
TYPES: list[tuple[Table[Any], type[Any]]] = [
    *((NTF_COMMANDS, cls) for cls in our.NTF_COMMANDS),
    *((NTF_RESPONSES, cls) for cls in our.NTF_RESPONSES),
]

ED = SPKI_PREFIX[Algorithm.ED25519] + bytes(32)
X = SPKI_PREFIX[Algorithm.X25519] + bytes(32)
PRIVATE = PKCS8_PREFIX[Algorithm.X25519] + bytes(32)
TOKEN = APNSDeviceToken(PushProvider.APNS_TEST, b"abcd")
SERVER = ServerAddress(Scheme.SMP, (Host(HostKind.DOMAIN, "a.example"),), "", bytes(32))


def test_every_message_has_a_strategy() -> None:
    assert {message.type for message in NTF_COMMANDS.messages} == set(our.NTF_COMMANDS)
    assert {message.type for message in NTF_RESPONSES.messages} == set(our.NTF_RESPONSES)


@pytest.mark.parametrize(("table", "cls"), TYPES, ids=lambda item: getattr(item, "__name__", ""))
@given(version=our.ntf_versions, data=st.data())
def test_round_trip(table: Table[Any], cls: type[Any], version: int, data: st.DataObject) -> None:
    value = data.draw(BY_TYPE[cls])
    expected = value
    if isinstance(value, ntf.TKN) and version < 3:
        expected = ntf.TKN(value.status.without_reason())
    encoded = table.encode(value, version)
    assert table.decode(encoded, version) == expected
    assert table.encode(expected, version) == encoded
    assert table.explain(encoded, version)[0] == cls.__name__.encode()


EXACT: list[tuple[Table[Any], Any, bytes]] = [
    (NTF_COMMANDS, ntf.TNEW(TOKEN, ED, X), b"TNEW TAT\x04abcd\x2c" + ED + b"\x2c" + X),
    (NTF_COMMANDS, ntf.TVFY(b"code"), b"TVFY \x04code"),
    (NTF_COMMANDS, ntf.TCHK(), b"TCHK"),
    (NTF_COMMANDS, ntf.TRPL(TOKEN), b"TRPL AT\x04abcd"),
    (NTF_COMMANDS, ntf.TDEL(), b"TDEL"),
    (NTF_COMMANDS, ntf.TCRN(30), b"TCRN \x00\x1e"),
    (
        NTF_COMMANDS,
        ntf.SNEW(b"t", SMPQueueNtf(SERVER, b"n"), PRIVATE),
        b"SNEW S\x01t\x01\x09a.example\x00\x20" + bytes(32) + b"\x01n\x30" + PRIVATE,
    ),
    (NTF_COMMANDS, ntf.SCHK(), b"SCHK"),
    (NTF_COMMANDS, ntf.SDEL(), b"SDEL"),
    (NTF_COMMANDS, ntf.PING(), b"PING"),
    (NTF_RESPONSES, ntf.IDTKN(b"id", X), b"IDTKN \x02id\x2c" + X),
    (NTF_RESPONSES, ntf.IDSUB(b"id"), b"IDSUB \x02id"),
    (NTF_RESPONSES, ntf.OK(), b"OK"),
    (NTF_RESPONSES, ntf.ERR(ErrorCode.AUTH), b"ERR AUTH"),
    (NTF_RESPONSES, ntf.TKN(TokenStatus.ACTIVE), b"TKN ACTIVE"),
    (
        NTF_RESPONSES,
        ntf.SUB(NtfSubStatus(SubscriptionState.ERR, b"SMP error QUOTA")),
        b"SUB ERR SMP error QUOTA",
    ),
    (NTF_RESPONSES, ntf.PONG(), b"PONG"),
]


@pytest.mark.parametrize("version", our.NTF_VERSION_NUMBERS)
@pytest.mark.parametrize(("table", "value", "data"), EXACT)
def test_exact_bytes(table: Table[Any], value: Any, data: bytes, version: int) -> None:
    assert table.encode(value, version) == data
    assert table.decode(data, version) == value


@pytest.mark.parametrize(
    ("version", "data"),
    [(1, b"TKN INVALID"), (2, b"TKN INVALID"), (3, b"TKN INVALID,UNREGISTERED")],
)
def test_the_reason_goes_only_to_version_3(version: int, data: bytes) -> None:
    message = ntf.TKN(TokenStatus.INVALID_UNREGISTERED)
    assert NTF_RESPONSES.encode(message, version) == data


@pytest.mark.parametrize(
    "data",
    [
        *(b"TNEW", b"TNEW S", b"TNEW TXX\x00", b"TNEW TAT\x04abcd\x2c" + X + b"\x2c" + ED),
        *(b"TVFY", b"TVFY ", b"TVFY \x05code", b"TCHK ", b"TCHK x", b"TRPL XX\x02zz"),
        *(b"TCRN \x00", b"TCRN \x00\x1e extra", b"SNEW T", b"SNEW S\x00\x00", b"PING "),
    ],
)
def test_command_malformed(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        NTF_COMMANDS.decode(data, 3)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@pytest.mark.parametrize(
    "data", [b"TKN", b"TKN WHAT", b"SUB ERR", b"ERR", b"ERR WHAT", b"IDTKN \x00"]
)
def test_response_malformed(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        NTF_RESPONSES.decode(data, 3)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


def test_a_response_is_no_command() -> None:
    for data in (b"OK", b"PONG", b"SUB NEW"):
        with pytest.raises(WireError) as caught:
            NTF_COMMANDS.decode(data, 3)
        assert caught.value.error is ErrorCode.CMD_UNKNOWN


@given(st.binary(max_size=60), our.ntf_versions, st.sampled_from(TYPES))
def test_any_bytes(data: bytes, version: int, kind: tuple[Table[Any], type[Any]]) -> None:
    table, cls = kind
    value, error = attempt(table.decode, cls.__name__.encode() + b" " + data, version)
    if error is not None:
        assert error is ErrorCode.CMD_SYNTAX
        return
    encoded = table.encode(value, version)
    assert table.encode(table.decode(encoded, version), version) == encoded


def test_credentials() -> None:
    rules = {message.type: message.credentials for message in NTF_COMMANDS.messages}
    assert {cls for cls, rule in rules.items() if rule is Credentials.AUTH} == {ntf.TNEW, ntf.SNEW}
    assert {cls for cls, rule in rules.items() if rule is Credentials.NONE} == {ntf.PING}
    assert set(rules.values()) == {Credentials.AUTH, Credentials.NONE, Credentials.ENTITY_AUTH}
    replies = {message.type: message.credentials for message in NTF_RESPONSES.messages}
    assert replies == {
        ntf.IDTKN: Credentials.REPLY_NO_ENTITY,
        ntf.IDSUB: Credentials.REPLY_NO_ENTITY,
        ntf.OK: Credentials.REPLY,
        ntf.ERR: Credentials.REPLY_ANY,
        ntf.TKN: Credentials.REPLY,
        ntf.SUB: Credentials.REPLY,
        ntf.PONG: Credentials.REPLY_NO_ENTITY,
    }
