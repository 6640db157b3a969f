import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.ntf import NTF_COMMANDS, NTF_RESPONSES
from heliograph.wire.primitives import literal, short, u8
from heliograph.wire.smp import SMP_COMMANDS, SMP_RESPONSES
from heliograph.wire.table import (
    Credentials,
    Field,
    Message,
    Span,
    Table,
    check_credentials,
    tag_of,
)


@dataclass(frozen=True)
class ONE:
    """One."""


@dataclass(frozen=True)
class TWO:
    first: bytes = b""
    second: int = 0


@dataclass(frozen=True)
class OLD:
    first: bytes = b""


def as_old(message: TWO, version: int) -> TWO | OLD:
    return message if version >= 2 else OLD(message.first)


TABLE: Table[ONE | TWO | OLD] = Table(
    "test message",
    (
        Message(ONE, Credentials.NONE),
        Message(
            TWO,
            Credentials.AUTH,
            (
                Field("", literal(b"T")),
                Field("first", short),
                Field("second", u8, since=3, until=4),
            ),
            downgrade=as_old,
        ),
        Message(OLD, Credentials.REPLY, (Field("first", short),), tag=b"O"),
    ),
)


@pytest.mark.parametrize(
    ("value", "version", "data"),
    [
        (ONE(), 1, b"ONE"),
        (TWO(b"x"), 2, b"TWO T\x01x"),
        (TWO(b"x", 7), 3, b"TWO T\x01x\x07"),
        (TWO(b"x", 7), 4, b"TWO T\x01x\x07"),
        (TWO(b"x"), 5, b"TWO T\x01x"),
        (OLD(b"x"), 1, b"O \x01x"),
    ],
)
def test_encode_and_decode(value: Any, version: int, data: bytes) -> None:
    assert TABLE.encode(value, version) == data
    assert TABLE.decode(data, version) == value


def test_downgrade_changes_the_message() -> None:
    assert TABLE.encode(TWO(b"x", 7), 1) == b"O \x01x"


def test_credentials() -> None:
    assert TABLE.credentials(ONE()) is Credentials.NONE
    assert TABLE.credentials(TWO()) is Credentials.AUTH


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ErrorCode.CMD_UNKNOWN),
        (b" ", ErrorCode.CMD_UNKNOWN),
        (b" ONE", ErrorCode.CMD_UNKNOWN),
        (b"one", ErrorCode.CMD_UNKNOWN),
        (b"ONES", ErrorCode.CMD_UNKNOWN),
        (b"ONE\n", ErrorCode.CMD_UNKNOWN),
        (b"A" * 20 + b" ", ErrorCode.CMD_UNKNOWN),
        (b"ONE ", ErrorCode.CMD_SYNTAX),
        (b"ONE x", ErrorCode.CMD_SYNTAX),
        (b"TWO", ErrorCode.CMD_SYNTAX),
        (b"TWO ", ErrorCode.CMD_SYNTAX),
        (b"TWO S\x01x", ErrorCode.CMD_SYNTAX),
        (b"TWO T\x01x surplus", ErrorCode.CMD_SYNTAX),
    ],
)
def test_malformed(data: bytes, error: ErrorCode) -> None:
    for parse in (TABLE.decode, TABLE.explain):
        with pytest.raises(WireError) as caught:
            parse(data, 2)
        assert caught.value.error is error


def test_explain() -> None:
    assert TABLE.explain(b"ONE", 1) == (b"ONE", [])
    assert TABLE.explain(b"TWO T\x01x\x07", 3) == (
        b"TWO",
        [
            Span("", "`T`", 4, 5, None),
            Span("first", "str", 5, 7, b"x"),
            Span("second", "u8", 7, 8, 7),
        ],
    )


def test_layouts() -> None:
    message = TABLE.messages[1]
    assert [field.name for field in message.layout(2)] == ["", "first"]
    assert [field.name for field in message.layout(3)] == ["", "first", "second"]
    assert tag_of(message) == b"TWO"
    assert tag_of(TABLE.messages[2]) == b"O"


@pytest.mark.parametrize("table", [NTF_COMMANDS, NTF_RESPONSES, SMP_COMMANDS, SMP_RESPONSES])
def test_tags_are_unique_and_short_enough_to_be_found(table: Table[Any]) -> None:
    tags = [tag_of(message) for message in table.messages]
    assert len(set(tags)) == len(tags)
    assert all(0 < len(tag) < 8 for tag in tags)


@pytest.mark.parametrize("table", [NTF_COMMANDS, NTF_RESPONSES, SMP_COMMANDS, SMP_RESPONSES])
def test_at_most_one_field_of_a_name_in_each_version(table: Table[Any]) -> None:
    for message in table.messages:
        for version in range(1, 20):
            names = [field.name for field in message.layout(version) if field.name]
            assert len(set(names)) == len(names)


# The reference's rules: each (authorization, entity) pair, and what it answers.
NO_AUTH, HAS_AUTH, NO_ENTITY = (
    ErrorCode.CMD_NO_AUTH,
    ErrorCode.CMD_HAS_AUTH,
    ErrorCode.CMD_NO_ENTITY,
)
RULES: dict[Credentials, dict[tuple[bool, bool], ErrorCode | None]] = {
    Credentials.AUTH: {
        (False, False): NO_AUTH,
        (False, True): NO_AUTH,
        (True, False): None,
        (True, True): HAS_AUTH,
    },
    Credentials.ENTITY_AUTH: {
        (False, False): NO_AUTH,
        (False, True): NO_AUTH,
        (True, False): NO_AUTH,
        (True, True): None,
    },
    Credentials.ENTITY: {
        (False, False): NO_ENTITY,
        (False, True): None,
        (True, False): NO_ENTITY,
        (True, True): None,
    },
    Credentials.NONE: {
        (False, False): None,
        (False, True): HAS_AUTH,
        (True, False): HAS_AUTH,
        (True, True): HAS_AUTH,
    },
    Credentials.ENTITY_NO_AUTH: {
        (False, False): NO_ENTITY,
        (False, True): None,
        (True, False): NO_ENTITY,
        (True, True): HAS_AUTH,
    },
    Credentials.REPLY: {(False, False): NO_ENTITY, (False, True): None},
    Credentials.REPLY_NO_ENTITY: {(False, False): None, (False, True): HAS_AUTH},
    Credentials.REPLY_ANY: {(False, False): None, (False, True): None},
}


@pytest.mark.parametrize(
    ("rule", "auth", "entity"),
    [(rule, *pair) for rule, pairs in RULES.items() for pair in pairs],
)
def test_credential_rules(rule: Credentials, auth: bool, entity: bool) -> None:
    expected = RULES[rule][auth, entity]
    arguments = (rule, b"a" * 64 if auth else b"", b"e" if entity else b"")
    if expected is None:
        check_credentials(*arguments)
        return
    with pytest.raises(WireError, match=rule.value) as caught:
        check_credentials(*arguments)
    assert caught.value.error is expected


def test_every_rule_is_tried() -> None:
    assert set(RULES) == set(Credentials)
    for rule in (Credentials.AUTH, Credentials.ENTITY_AUTH, Credentials.ENTITY, Credentials.NONE):
        assert set(RULES[rule]) == set(itertools.product((False, True), repeat=2))
