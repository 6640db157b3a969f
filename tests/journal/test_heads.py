import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from heliograph.journal.heads import HEADS, Head, decode_head, encode_head, write_head

NUMBERS = st.integers(0, 2**63 - 1)
IDS = st.text("0123456789abcdef", min_size=1, max_size=16)
PARTS = st.sampled_from(("smp", "ntf"))
heads = st.builds(Head, IDS, NUMBERS, PARTS, NUMBERS, NUMBERS, NUMBERS, st.booleans(), NUMBERS)


@given(heads)
def test_round_trip(head: Head) -> None:
    assert decode_head(encode_head(head)) == head


documents = st.recursive(st.none() | st.integers() | st.text(), st.lists)


@given(st.binary() | documents.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode_head(data)


@given(
    heads,
    st.sampled_from(("boot", "segment", "seq", "at", "lost")),
    st.sampled_from((-1, 2**63, 1.5)),
)
def test_numbers_are_whole_and_fit(head: Head, name: str, value: float) -> None:
    document = json.loads(encode_head(head))
    with pytest.raises(ValueError, match="not the head of a run"):
        decode_head(json.dumps({**document, name: value}).encode())


def test_a_newer_head_replaces_the_older(tmp_path: Path) -> None:
    for seq in (1, 2):
        write_head(tmp_path, Head("router", 7, "ntf", 1, seq))
    [path] = (tmp_path / HEADS).iterdir()
    assert decode_head(path.read_bytes()).seq == 2
