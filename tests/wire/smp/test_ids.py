import hashlib

from hypothesis import given, strategies as st

from heliograph.wire.smp.ids import IDS_HASH_SIZE, NO_IDS, id_hash, ids_hash, toggle

IDS = st.lists(st.binary(max_size=40), max_size=8)


def test_the_hash_of_one_id_is_its_md5() -> None:
    assert id_hash(b"abc") == hashlib.md5(b"abc").digest()
    assert ids_hash([b"abc"]) == id_hash(b"abc")
    assert id_hash(b"abc").hex() == "900150983cd24fb0d6963f7d28e17f72"


def test_no_ids_are_zeros() -> None:
    assert ids_hash([]) == NO_IDS == bytes(IDS_HASH_SIZE)


@given(IDS, st.randoms())
def test_order_does_not_matter(ids: list[bytes], random: object) -> None:
    assert ids_hash(reversed(ids)) == ids_hash(ids)
    assert ids_hash(sorted(ids)) == ids_hash(ids)


@given(IDS, st.binary(max_size=40))
def test_an_id_is_added_and_taken_away_alike(ids: list[bytes], one: bytes) -> None:
    added = toggle(ids_hash(ids), one)
    assert added == ids_hash([*ids, one])
    assert toggle(added, one) == ids_hash(ids)
    assert len(added) == IDS_HASH_SIZE


def test_leading_zeros_are_kept() -> None:
    one = next(text for text in map(str, range(10_000)) if id_hash(text.encode())[0] == 0)
    assert len(ids_hash([one.encode()])) == IDS_HASH_SIZE
    assert toggle(NO_IDS, one.encode()) == id_hash(one.encode())
