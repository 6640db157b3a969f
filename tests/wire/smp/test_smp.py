from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.errors import (
    BLOCKED,
    STORE,
    BlockingReason,
    ClientNotice,
    ErrorCode,
    ErrorType,
    WireError,
)
from heliograph.wire.handshakes import CertChainPubKey
from heliograph.wire.keys import SPKI_PREFIX, Algorithm
from heliograph.wire.smp import SMP_COMMANDS, SMP_RESPONSES
from heliograph.wire.smp.fields import (
    MsgFlags,
    NewNtfCreds,
    QueueInfo,
    QueueMode,
    QueueReqData,
    ServerNtfCreds,
    SubscriptionMode,
)
from heliograph.wire.table import Credentials, Table
from heliograph.wire.versions import VersionRange
from tests import strategies as our
from tests.wire.attempt import attempt

BY_TYPE = our.SMP_COMMANDS | our.SMP_RESPONSES
TYPES: list[tuple[Table[Any], type[Any]]] = [
    *((SMP_COMMANDS, cls) for cls in our.SMP_COMMANDS),
    *((SMP_RESPONSES, cls) for cls in our.SMP_RESPONSES),
]

ED = SPKI_PREFIX[Algorithm.ED25519] + bytes(32)
X = SPKI_PREFIX[Algorithm.X25519] + bytes(32)
ED_S = b"\x2c" + ED
X_S = b"\x2c" + X
HASH = bytes(range(16))
SERVER = ServerAddress(Scheme.SMP, (decode_host("a.example"),), "", b"fingerprint")
SERVER_BYTES = b"\x01\x09a.example\0\x0bfingerprint"


def as_received(value: Any, version: int) -> Any:
    """What the other side of a connection at `version` makes of a value: written from the protocol,
    not from the table."""
    match value:
        case smp.NEW():
            request = value.queue_data
            if version < 9:
                request = None
            elif version < 15:
                secures = request is not None and request.mode is QueueMode.MESSAGING
                request = QueueReqData(QueueMode.MESSAGING if secures else QueueMode.CONTACT)
            creds = value.ntf_creds if version >= 17 else None
            return replace(value, queue_data=request, ntf_creds=creds)
        case smp.IDS():
            mode = value.mode
            if version < 9:
                mode = None
            elif version < 15:
                mode = QueueMode.MESSAGING if mode is QueueMode.MESSAGING else QueueMode.CONTACT
            return replace(
                value,
                mode=mode,
                link_id=value.link_id if version >= 15 else None,
                service_id=value.service_id if version >= 16 else None,
                ntf_creds=value.ntf_creds if version >= 17 else None,
            )
        case smp.SUBS() | smp.NSUBS() if version < 19:
            return type(value)(-1, bytes(16))
        case smp.SOKS() | smp.ENDS() if version < 19:
            return type(value)(value.count, bytes(16))
        case smp.SOK() if version < 16:
            return smp.OK()
        case smp.DELD() if version < 10:
            return smp.END()
        case smp.ERR(BLOCKED(reason)) if version < 18:
            return smp.ERR(BLOCKED(reason) if version >= 12 else ErrorCode.AUTH)
    return value


def test_every_message_has_a_strategy() -> None:
    assert {message.type for message in SMP_COMMANDS.messages} == set(our.SMP_COMMANDS)
    assert {message.type for message in SMP_RESPONSES.messages} == set(our.SMP_RESPONSES)


@pytest.mark.parametrize(("table", "cls"), TYPES, ids=lambda item: getattr(item, "__name__", ""))
@given(data=st.data())
def test_round_trip_in_every_version(
    table: Table[Any], cls: type[Any], data: st.DataObject
) -> None:
    value = data.draw(BY_TYPE[cls])
    for version in our.SMP_VERSION_NUMBERS:
        encoded = table.encode(value, version)
        received = table.decode(encoded, version)
        assert received == as_received(value, version)
        assert table.encode(received, version) == encoded
        assert table.explain(encoded, version)[0] == type(received).__name__.encode()


NEW_FULL = smp.NEW(
    *(ED, X, b"pw", SubscriptionMode.CREATE_ONLY),
    *(QueueReqData(QueueMode.MESSAGING), NewNtfCreds(ED, X)),
)
NEW_HEAD = b"NEW " + ED_S + X_S
IDS_FULL = smp.IDS(b"r", b"s", X, QueueMode.MESSAGING, b"l", b"v", ServerNtfCreds(b"n", X))
IDS_HEAD = b"IDS \x01r\x01s" + X_S

# (value, bytes, the first and the last version that has them)
EXACT: list[tuple[Any, bytes, int, int]] = [
    (NEW_FULL, NEW_HEAD + b"A\x02pwC", 6, 8),
    (NEW_FULL, NEW_HEAD + b"1\x02pwCT", 9, 14),
    (NEW_FULL, NEW_HEAD + b"1\x02pwC1M0", 15, 16),
    (NEW_FULL, NEW_HEAD + b"1\x02pwC1M01" + ED_S + X_S, 17, 19),
    (smp.NEW(ED, X), NEW_HEAD + b"S", 6, 8),
    (smp.NEW(ED, X), NEW_HEAD + b"0SF", 9, 14),
    (smp.NEW(ED, X), NEW_HEAD + b"0S0", 15, 16),
    (smp.NEW(ED, X), NEW_HEAD + b"0S00", 17, 19),
    (smp.SUB(), b"SUB", 6, 19),
    (smp.SUBS(7, HASH), b"SUBS", 6, 18),
    (smp.SUBS(7, HASH), b"SUBS " + bytes(7) + b"\x07\x10" + HASH, 19, 19),
    (smp.NSUBS(7, HASH), b"NSUBS", 6, 18),
    (smp.NSUBS(-1, HASH), b"NSUBS " + b"\xff" * 8 + b"\x10" + HASH, 19, 19),
    (smp.KEY(ED), b"KEY " + ED_S, 6, 19),
    (smp.SKEY(X), b"SKEY " + X_S, 6, 19),
    (smp.NKEY(ED, X), b"NKEY " + ED_S + X_S, 6, 19),
    (smp.RKEY((ED, X)), b"RKEY \x02" + ED_S + X_S, 6, 19),
    (smp.LSET(b"l", b"fix", b"user"), b"LSET \x01l\0\x03fix\0\x04user", 6, 19),
    (smp.LDEL(), b"LDEL", 6, 19),
    (smp.LKEY(X), b"LKEY " + X_S, 6, 19),
    (smp.LGET(), b"LGET", 6, 19),
    (smp.PRXY(SERVER), b"PRXY " + SERVER_BYTES + b"0", 6, 19),
    (smp.PRXY(SERVER, b"pw"), b"PRXY " + SERVER_BYTES + b"1\x02pw", 6, 19),
    (smp.PFWD(17, X, b"box"), b"PFWD \0\x11" + X_S + b"box", 6, 19),
    (smp.RFWD(b"box"), b"RFWD box", 6, 19),
    (smp.LNK(b"s", b"fix", b"user"), b"LNK \x01s\0\x03fix\0\x04user", 6, 19),
    (
        smp.PKEY(b"id", VersionRange(8, 17), CertChainPubKey((b"leaf", b"ca"), b"key")),
        b"PKEY \x02id\0\x08\0\x11\x02\0\x04leaf\0\x02ca\0\x03key",
        6,
        19,
    ),
    (smp.PRES(b"box"), b"PRES box", 6, 19),
    (smp.RRES(b""), b"RRES ", 6, 19),
    (smp.NDEL(), b"NDEL", 6, 19),
    (smp.GET(), b"GET", 6, 19),
    (smp.ACK(b"id"), b"ACK \x02id", 6, 19),
    (smp.OFF(), b"OFF", 6, 19),
    (smp.DEL(), b"DEL", 6, 19),
    (smp.QUE(), b"QUE", 6, 19),
    (smp.SEND(MsgFlags(True), b" body"), b"SEND T  body", 6, 19),
    (smp.SEND(MsgFlags(False), b""), b"SEND F ", 6, 19),
    (smp.NSUB(), b"NSUB", 6, 19),
    (smp.PING(), b"PING", 6, 19),
    (IDS_FULL, IDS_HEAD, 6, 8),
    (IDS_FULL, IDS_HEAD + b"T", 9, 14),
    (IDS_FULL, IDS_HEAD + b"1M1\x01l", 15, 15),
    (IDS_FULL, IDS_HEAD + b"1M1\x01l1\x01v", 16, 16),
    (IDS_FULL, IDS_HEAD + b"1M1\x01l1\x01v1\x01n" + X_S, 17, 19),
    (smp.IDS(b"r", b"s", X), IDS_HEAD + b"F", 9, 14),
    (smp.IDS(b"r", b"s", X), IDS_HEAD + b"0000", 17, 19),
    (smp.SOK(), b"OK", 6, 15),
    (smp.SOK(), b"SOK 0", 16, 19),
    (smp.SOK(b"v"), b"OK", 6, 15),
    (smp.SOK(b"v"), b"SOK 1\x01v", 16, 19),
    (smp.SOKS(7, HASH), b"SOKS " + bytes(7) + b"\x07", 6, 18),
    (smp.SOKS(7, HASH), b"SOKS " + bytes(7) + b"\x07\x10" + HASH, 19, 19),
    (smp.ENDS(7, HASH), b"ENDS " + bytes(7) + b"\x07", 6, 18),
    (smp.ENDS(7, HASH), b"ENDS " + bytes(7) + b"\x07\x10" + HASH, 19, 19),
    (smp.MSG(b"id", b"box"), b"MSG \x02idbox", 6, 19),
    (smp.ALLS(), b"ALLS", 6, 19),
    (smp.NID(b"id", X), b"NID \x02id" + X_S, 6, 19),
    (smp.NMSG(bytes(24), b"box"), b"NMSG " + bytes(24) + b"\x03box", 6, 19),
    (smp.END(), b"END", 6, 19),
    (smp.DELD(), b"END", 6, 9),
    (smp.DELD(), b"DELD", 10, 19),
    (
        smp.INFO(QueueInfo(True, False, 0)),
        b'INFO {"qiSnd":true,"qiNtf":false,"qiSize":0}',
        6,
        19,
    ),
    (smp.OK(), b"OK", 6, 19),
    (smp.PONG(), b"PONG", 6, 19),
    (smp.ERR(ErrorCode.QUOTA), b"ERR QUOTA", 6, 19),
    (smp.ERR(STORE("x")), b"ERR STORE x", 6, 19),
]


def table_of(value: Any) -> Table[Any]:
    return SMP_COMMANDS if type(value) in our.SMP_COMMANDS else SMP_RESPONSES


@pytest.mark.parametrize(("value", "data", "first", "last"), EXACT)
def test_exact_bytes(value: Any, data: bytes, first: int, last: int) -> None:
    table = table_of(value)
    for version in range(first, last + 1):
        assert table.encode(value, version) == data
        assert table.decode(data, version) == as_received(value, version)


def test_exact_bytes_of_every_message_in_every_version() -> None:
    covered = {
        (type(value), version)
        for value, _, first, last in EXACT
        for version in range(first, last + 1)
    }
    assert covered == {(cls, version) for _, cls in TYPES for version in our.SMP_VERSION_NUMBERS}


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (6, 11, ErrorCode.AUTH),
        (12, 17, BLOCKED(BlockingReason.SPAM)),
        (18, 19, BLOCKED(BlockingReason.SPAM, ClientNotice(60))),
    ],
)
def test_blocked_is_hidden_from_older_versions(first: int, last: int, expected: ErrorType) -> None:
    message = smp.ERR(BLOCKED(BlockingReason.SPAM, ClientNotice(60)))
    for version in range(first, last + 1):
        encoded = SMP_RESPONSES.encode(message, version)
        assert SMP_RESPONSES.decode(encoded, version) == smp.ERR(expected)


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (b"NEW", 19),
        (NEW_HEAD, 6),
        (NEW_HEAD + b"X", 6),
        (NEW_HEAD + b"A\x01@S", 6),
        (NEW_HEAD + b"0S", 9),
        (NEW_HEAD + b"0S0", 9),
        (NEW_HEAD + b"0SF", 15),
        (NEW_HEAD + b"0S1X0", 15),
        (NEW_HEAD + b"0S0", 17),
        (NEW_HEAD + b"0S00 ", 17),
        (b"SUB ", 6),
        (b"SUBS \x00", 18),
        (b"SUBS", 19),
        (b"SUBS " + bytes(8), 19),
        (b"KEY", 6),
        (b"KEY \x00", 6),
        (b"NKEY " + X_S + ED_S, 6),
        (b"SEND", 6),
        (b"SEND T", 6),
        (b"SEND X body", 6),
        (b"PING x", 6),
        (b"RKEY \0", 19),
        (b"RKEY \x01" + X_S + b"x", 19),
        (b"LGET x", 19),
        (b"LDEL ", 19),
        (b"LSET \x01l\0\x03fix", 19),
        (b"LSET \x01l\0\x03fix\0\x04user+", 19),
        (b"LKEY " + X_S + b"x", 19),
        (b"PRXY \0\0\x0bfingerprint0", 19),
        (b"PRXY \x01\0\0\x0bfingerprint0", 19),
        (b"PRXY \x01\x03a b\0\x0bfingerprint0", 19),
        (b"PRXY " + SERVER_BYTES + b"1\x03a b", 19),
        (b"PRXY " + SERVER_BYTES + b"0x", 19),
        (b"PFWD \0\x11" + ED_S + b"box", 19),
        (b"PFWD", 19),
        (b"RFWD", 19),
    ],
)
def test_command_malformed(data: bytes, version: int) -> None:
    with pytest.raises(WireError) as caught:
        SMP_COMMANDS.decode(data, version)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (b"IDS", 6),
        (IDS_HEAD + b"T", 6),
        (IDS_HEAD, 9),
        (b"SOK", 16),
        (b"SOKS " + bytes(8), 19),
        (b"MSG", 6),
        (b"NMSG " + bytes(23), 6),
        (b"END x", 6),
        (b"INFO {}", 6),
        (b"ERR", 6),
    ],
)
def test_response_malformed(data: bytes, version: int) -> None:
    with pytest.raises(WireError) as caught:
        SMP_RESPONSES.decode(data, version)
    assert caught.value.error is ErrorCode.CMD_SYNTAX


@given(st.binary(max_size=120), our.smp_versions, st.sampled_from(TYPES))
def test_any_bytes(data: bytes, version: int, kind: tuple[Table[Any], type[Any]]) -> None:
    table, cls = kind
    value, error = attempt(table.decode, cls.__name__.encode() + b" " + data, version)
    if error is not None:
        assert error is ErrorCode.CMD_SYNTAX
        return
    encoded = table.encode(value, version)
    assert table.encode(table.decode(encoded, version), version) == encoded


def test_credentials() -> None:
    rules = {message.type: message.credentials for message in SMP_COMMANDS.messages}
    special = {
        smp.NEW: Credentials.AUTH,
        smp.SEND: Credentials.ENTITY,
        smp.PING: Credentials.NONE,
        smp.PRXY: Credentials.NONE,
        smp.RFWD: Credentials.NONE,
        smp.PFWD: Credentials.ENTITY_NO_AUTH,
        smp.LGET: Credentials.ENTITY_NO_AUTH,
    }
    assert rules == dict.fromkeys(rules, Credentials.ENTITY_AUTH) | special
    replies = {message.type: message.credentials for message in SMP_RESPONSES.messages}
    special = {
        smp.IDS: Credentials.REPLY_ANY,
        smp.ERR: Credentials.REPLY_ANY,
        smp.PONG: Credentials.REPLY_NO_ENTITY,
        smp.ALLS: Credentials.REPLY_NO_ENTITY,
        smp.PKEY: Credentials.REPLY_NO_ENTITY,
        smp.RRES: Credentials.REPLY_NO_ENTITY,
    }
    assert replies == dict.fromkeys(replies, Credentials.REPLY) | special


@pytest.mark.parametrize(
    ("versions", "size"), [(range(6, 8), 16088), (range(8, 11), 16064), (range(11, 20), 16048)]
)
def test_longest_message(versions: range, size: int) -> None:
    assert {smp.max_message_length(version) for version in versions} == {size}
