from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.actions.pairing import PairKey, make_pair_secret, pair_secret
from heliograph.actions.snapshots import (
    KEPT_SECONDS,
    MAX_SNAPSHOTS,
    Pages,
    SnapshotRow,
    list_snapshots,
    write_snapshot,
)
from heliograph.runtime.errors import IdentityError, StartError

ROWS = [SnapshotRow("p", f"n{number}", is_subscribed=True) for number in range(5)]


def take(day: int) -> tuple[Callable[[], tuple[str, ...]], Pages]:
    async def pages() -> Pages:
        yield ROWS[:3]
        yield ROWS[3:]

    return lambda: ("p",), pages()


async def test_a_snapshot_is_whole_and_old_ones_are_removed(tmp_path: Path) -> None:
    for number in range(MAX_SNAPSHOTS + 2):
        await write_snapshot(tmp_path, "r", "smp", take, 1000.0 + number * KEPT_SECONDS * 2)
    found = [header for header, _ in list_snapshots(tmp_path)]
    assert len(found) == MAX_SNAPSHOTS
    assert found[-1].rows == len(ROWS)
    assert found[-1].places == ("p",)
    # One that may be read just now is kept, however many there are.
    for number in range(MAX_SNAPSHOTS + 2):
        await write_snapshot(tmp_path, "s", "smp", take, 1000.0 + number)
    found = [header for header, _ in list_snapshots(tmp_path) if header.router == "s"]
    assert len(found) == MAX_SNAPSHOTS + 2


async def test_a_failure_leaves_no_snapshot(tmp_path: Path) -> None:
    def fail(day: int) -> tuple[Callable[[], tuple[str, ...]], Pages]:
        async def pages() -> Pages:
            yield ROWS
            raise OSError("the store fails")

        return lambda: (), pages()

    with pytest.raises(OSError, match="the store fails"):
        await write_snapshot(tmp_path, "r", "smp", fail, 1000.0)
    assert [*list_snapshots(tmp_path)] == []


@pytest.mark.parametrize("damage", [b"", b"PAR1 and nothing else"])
async def test_what_is_no_snapshot_is_an_error_that_names_it(tmp_path: Path, damage: bytes) -> None:
    file = await write_snapshot(tmp_path, "r", "smp", take, 1000.0)
    file.write_bytes(damage)
    with pytest.raises(StartError, match=f"{file.name} is not a snapshot"):
        [*list_snapshots(tmp_path)]


def test_the_key_differs_by_router_day_and_secret(tmp_path: Path) -> None:
    make_pair_secret(tmp_path / "pair.key")
    secret = pair_secret(tmp_path / "pair.key")
    keys = [
        PairKey.derive(secret, b"a", 1),
        PairKey.derive(secret, b"b", 1),
        PairKey.derive(secret, b"a", 2),
        PairKey.derive(bytes(32), b"a", 1),
    ]
    assert len({key.place for key in keys}) == len({key.notifier(b"n") for key in keys}) == 4
    assert PairKey.derive(secret, b"a", 1) == keys[0]
    assert keys[0].notifier(b"n") != keys[0].service(b"n")
    assert keys[0].service(None) is None
    assert secret.hex() not in repr(keys[0])


@pytest.mark.parametrize("text", ["", "zz", "00" * 31])
def test_a_wrong_secret_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pair.key").write_text(text)
    with pytest.raises(IdentityError, match="64 hexadecimal digits"):
        pair_secret(tmp_path / "pair.key")
    with pytest.raises(IdentityError, match="openssl rand"):
        pair_secret(tmp_path / "none.key")
