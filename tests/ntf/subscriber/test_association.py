"""Finding the queues in which two digests differ, by their hashes."""

from itertools import combinations

from heliograph.ntf.subscriber.association import find_ids
from heliograph.wire.smp.ids import ids_hash
from tests.keys import fixed_bytes

IDS = [fixed_bytes(f"queue {number}", 24) for number in range(12)]


def test_one_or_two_are_found() -> None:
    for count in (1, 2):
        for missing in combinations(IDS, count):
            assert sorted(find_ids(IDS, count, ids_hash(missing))) == sorted(missing)


def test_others_are_not() -> None:
    assert find_ids(IDS, 0, ids_hash([])) == []
    assert find_ids(IDS, -1, ids_hash(IDS[:1])) == []
    assert find_ids(IDS, 3, ids_hash(IDS[:3])) == []
    for count in (1, 2):
        assert find_ids(IDS, count, ids_hash([b"a stranger"])) == []
