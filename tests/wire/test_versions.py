import pytest
from hypothesis import given

from heliograph.wire import versions
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import Reader
from heliograph.wire.versions import VersionRange, negotiate, version_range
from tests import strategies as our


@given(our.version_ranges)
def test_round_trip(value: VersionRange) -> None:
    assert version_range.decode(Reader(version_range.encode(value))) == value


def test_exact_bytes() -> None:
    assert version_range.encode(VersionRange(1, 3)).hex() == "00010003"


@pytest.mark.parametrize("data", ["", "000100", "00030001"])
def test_malformed(data: str) -> None:
    with pytest.raises(WireError):
        version_range.decode(Reader(bytes.fromhex(data)))


@given(our.version_ranges, our.version_ranges)
def test_negotiation_finds_the_highest_common_version(
    ours: VersionRange, theirs: VersionRange
) -> None:
    lowest, highest = max(ours.min, theirs.min), min(ours.max, theirs.max)
    assert negotiate(ours, theirs) == (highest if lowest <= highest else None)
    assert negotiate(ours, theirs) == negotiate(theirs, ours)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((6, 19), (6, 18), 18),
        ((6, 19), (6, 6), 6),
        ((1, 3), (4, 5), None),
        ((4, 5), (1, 3), None),
        ((1, 3), (3, 9), 3),
    ],
)
def test_negotiation(ours: tuple[int, int], theirs: tuple[int, int], expected: int | None) -> None:
    assert negotiate(VersionRange(*ours), VersionRange(*theirs)) == expected


def test_containment() -> None:
    assert 6 in versions.SMP_VERSIONS
    assert 19 in versions.SMP_VERSIONS
    assert 5 not in versions.SMP_VERSIONS
    assert 20 not in versions.SMP_VERSIONS
    assert list(our.NTF_VERSION_NUMBERS) == [v for v in range(9) if v in versions.NTF_VERSIONS]
    assert list(our.SMP_VERSION_NUMBERS) == [v for v in range(30) if v in versions.SMP_VERSIONS]
    legacy = (versions.NTF_LEGACY_VERSIONS, versions.SMP_LEGACY_VERSIONS)
    assert legacy == (VersionRange(1, 1), VersionRange(6, 6))
