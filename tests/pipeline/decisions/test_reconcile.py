from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.snapshots import SnapshotHeader, SnapshotRow
from heliograph.pipeline.decisions.reconcile import MAX_APART, choose_pairs, compare

NTF = SnapshotHeader("ntf", "ntf", 1000, 1010, 3, ("p1", "p2"))
SMP = SnapshotHeader("smp", "smp", 1005, 1015, 3, ("p1",))


def row(number: int, **columns: Any) -> SnapshotRow:
    return SnapshotRow("p1", f"n{number}", **columns)


def here(number: int, state: str, service: str | None = None, place: str = "p1") -> SnapshotRow:
    found = row(number, state=state, subscription=f"s{number}", server="srv", service=service)
    return found._replace(place=place)


def there(number: int, is_subscribed: bool, service: str | None = None) -> SnapshotRow:
    return row(number, is_subscribed=is_subscribed, service=service)


def frame(spark: Any, rows: list[SnapshotRow]) -> Any:
    schema = ", ".join(
        f"{name} {'boolean' if name == 'is_subscribed' else 'string'}"
        for name in SnapshotRow._fields
    )
    return spark.createDataFrame([tuple(item) for item in rows], schema)


def test_each_difference_is_found_and_nothing_else(spark: Any) -> None:
    cases = [
        (here(1, "ACTIVE"), there(1, True), None),
        (here(2, "ACTIVE"), there(2, False), "unsubscribed"),
        (here(3, "END"), there(3, False), "ended"),
        (here(4, "END"), there(4, True), None),  # somebody else has it
        (here(5, "AUTH"), there(5, False), "refused"),
        (here(6, "DELETED"), there(6, True), "refused"),
        (here(7, "ERR"), there(7, False), "failed"),
        (here(8, "ACTIVE", "a"), there(8, True, "a"), None),
        (here(9, "ACTIVE", "a"), there(9, True), "wrong_service"),
        (here(10, "ACTIVE", "a"), there(10, True, "b"), "wrong_service"),
        (here(11, "ACTIVE"), None, "absent"),
        (here(12, "AUTH"), None, "orphan"),
        (here(13, "DELETED"), None, "orphan"),
        # The router knows that these are to be subscribed.
        (here(14, "INACTIVE"), there(14, False), None),
        (here(15, "PENDING"), None, None),
        # Of this place there is no snapshot of a messaging router.
        (here(16, "ACTIVE", place="p2"), None, None),
    ]
    ntf = frame(spark, [ours for ours, _, _ in cases])
    smp = frame(
        spark,
        [theirs for _, theirs, _ in cases if theirs is not None]
        # Two queues of our service that we do not have, and one of somebody else.
        + [there(20, True, "a"), there(21, False, "a"), there(22, True, "z"), there(23, True)],
    )
    found = {
        (item["finding"], item["subscription"], item["server"], item["number"])
        for item in compare(ntf, smp, ["p1"]).collect()
    }
    expected = {
        (finding, ours.subscription, "srv", 1) for ours, _, finding in cases if finding is not None
    }
    assert found == expected | {("surplus", None, "srv", 2)}


@pytest.mark.parametrize(
    ("smp", "expected"),
    [
        (SMP, 1),
        (replace(SMP, began_at=NTF.began_at + MAX_APART + 1), 0),
        (replace(SMP, places=("p9",)), 0),
        (replace(SMP, part="ntf", router="other"), 0),
    ],
)
def test_only_snapshots_that_belong_together_are_compared(
    smp: SnapshotHeader, expected: int
) -> None:
    pairs = choose_pairs([(NTF, Path("a")), (smp, Path("b"))], now=2000, max_age=10_000)
    assert len(pairs) == expected


def test_old_snapshots_are_not_compared_and_the_newest_pair_is() -> None:
    both = [(NTF, Path("a")), (SMP, Path("b"))]
    assert not choose_pairs(both, now=50_000, max_age=10_000)
    lone = replace(NTF, began_at=NTF.began_at + 10 * MAX_APART)
    [pair] = choose_pairs([*both, (lone, Path("c"))], now=2000, max_age=10_000)
    assert pair.ntf == both[0]
    assert pair.window == (1000, 1015)
