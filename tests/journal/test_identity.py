from pathlib import Path

import pytest

from heliograph.journal.hashing import Hasher
from heliograph.journal.identity import journal_identity
from heliograph.runtime.errors import IdentityError


def hash_in(directory: Path, epoch: int) -> str:
    hashes = Hasher(journal_identity(directory, epoch).key).of("token")
    assert hashes is not None
    return hashes[b"token"]


def test_epochs_cannot_be_linked(tmp_path: Path) -> None:
    found = [hash_in(tmp_path, epoch) for epoch in range(4)]
    assert len(set(found)) == 4
    assert found == [hash_in(tmp_path, epoch) for epoch in range(4)]
    routers = {journal_identity(tmp_path, epoch).router for epoch in range(4)}
    assert len(routers) == 1


def test_a_damaged_key_is_reported(tmp_path: Path) -> None:
    journal_identity(tmp_path)
    (tmp_path / "journal.key").write_text("nonsense")
    with pytest.raises(IdentityError, match="hexadecimal"):
        journal_identity(tmp_path, 1)
