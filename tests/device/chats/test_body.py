import json

import pytest
from hypothesis import given, strategies as st

from heliograph.device.chats.body import (
    MAX_NAME,
    MAX_TEXT,
    Body,
    BodyError,
    Call,
    Greeting,
    Text,
    decode_body,
    encode_body,
)
from heliograph.device.chats.model import CallMedia

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=MAX_NAME)
maybe = st.one_of(st.just(""), names)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
bodies = st.one_of(
    st.builds(Greeting, names, st.booleans()),
    st.builds(Text, texts, maybe, maybe, maybe),
    st.builds(Call, st.sampled_from(CallMedia)),
)


@given(bodies)
def test_what_is_written_is_read(body: Body) -> None:
    assert decode_body(encode_body(body)) == body


@given(st.binary())
def test_any_bytes_are_no_error(data: bytes) -> None:
    assert decode_body(data) is None or isinstance(decode_body(data), Body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.sampled_from(["hello", "message", "call", "later"]), json_values)
def test_any_object_is_no_error(kind: str, value: object) -> None:
    decode_body(json.dumps({"v": 1, kind: value}).encode())


@given(bodies, st.dictionaries(st.text(), json_values))
def test_members_of_later_versions_are_ignored(body: Body, more: dict[str, object]) -> None:
    document = json.loads(encode_body(body))
    kind = next(key for key in document if key != "v")
    for key, value in more.items():
        document[kind].setdefault(f"x-{key}", value)
    assert decode_body(json.dumps(document).encode()) == body


@pytest.mark.parametrize(
    "body",
    [
        Greeting(""),
        Greeting("x" * (MAX_NAME + 1)),
        Text(""),
        Text("x" * (MAX_TEXT + 1)),
        Text("a", "\ud800"),
    ],
)
def test_what_nobody_could_read_is_not_written(body: Body) -> None:
    with pytest.raises(BodyError):
        encode_body(body)


@pytest.mark.parametrize(
    "document",
    [
        {"v": 1},
        {"v": 1, "hello": {"name": ""}},
        {"v": 1, "hello": {"name": "\ud800"}},
        {"v": 1, "message": {"text": 5}},
        {"v": 1, "message": {}},
        {"v": 1, "message": {"text": "a", "group": ["g"]}},
        {"v": 1, "call": {"media": "smoke"}},
        {"hello": {"name": "no version"}},
        [],
    ],
)
def test_what_cannot_be_read_is_nothing(document: object) -> None:
    assert decode_body(json.dumps(document).encode()) is None
