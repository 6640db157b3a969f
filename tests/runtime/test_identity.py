"""Keys on disk: made once, loaded as they were, rotated without changing who the router is."""

import logging
import stat
import time
from pathlib import Path

import pytest

from heliograph.crypto.certificates import SigningAlgorithm
from heliograph.runtime.errors import IdentityError
from heliograph.runtime.identity import FILES, create_identity, load_identity, rotate_leaf
from heliograph.transport.handshake import ServerIdentity
from heliograph.wire.primitives import b64encode

NOW = time.time()


def create(directory: Path) -> ServerIdentity:
    return create_identity(directory, "SMP server CA", "localhost", NOW)


def test_create_and_load(tmp_path: Path) -> None:
    directory = tmp_path / "router"
    created = create(directory)
    assert load_identity(directory, NOW) == created
    assert {path.name for path in directory.iterdir()} == set(FILES)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert (directory / "fingerprint").read_text() == f"{b64encode(created.fingerprint)}\n"


def test_ed448_and_a_long_host(tmp_path: Path) -> None:
    created = create_identity(tmp_path / "r", "CA", "é" * 50, NOW, SigningAlgorithm.ED448)
    assert load_identity(tmp_path / "r", NOW) == created


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(IdentityError, match=name):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IdentityError, match="cannot be written"):
        create(tmp_path / "file" / "router")


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_missing(tmp_path: Path, name: str) -> None:
    create(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(IdentityError, match=f"{name} is missing.*init"):
        load_identity(tmp_path, NOW)


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_unreadable_and_damaged(tmp_path: Path, name: str) -> None:
    create(tmp_path)
    (tmp_path / name).write_text("nonsense")
    with pytest.raises(IdentityError, match="restore"):
        load_identity(tmp_path, NOW)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(IdentityError, match="cannot be read"):
        load_identity(tmp_path, NOW)


def test_keys_of_another_router(tmp_path: Path) -> None:
    create(tmp_path / "a")
    create(tmp_path / "b")
    (tmp_path / "a" / "ca.crt").write_bytes((tmp_path / "b" / "ca.crt").read_bytes())
    with pytest.raises(IdentityError, match="do not belong together"):
        load_identity(tmp_path / "a", NOW)


def test_fingerprint_must_match_if_it_is_there(tmp_path: Path) -> None:
    created = create(tmp_path)
    (tmp_path / "fingerprint").write_text("AAAA\n")
    with pytest.raises(IdentityError, match="not the fingerprint"):
        load_identity(tmp_path, NOW)
    (tmp_path / "fingerprint").unlink()
    assert load_identity(tmp_path, NOW) == created


def test_the_authoritys_key_may_be_elsewhere(tmp_path: Path) -> None:
    created = create(tmp_path)
    (tmp_path / "ca.key").unlink()
    assert load_identity(tmp_path, NOW) == created


def test_open_keys_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    create(tmp_path)
    with caplog.at_level(logging.WARNING):
        load_identity(tmp_path, NOW)
        assert not caplog.records
        (tmp_path / "server.key").chmod(0o640)
        load_identity(tmp_path, NOW)
    assert "chmod 600" in caplog.text


def test_rotation_keeps_the_identity(tmp_path: Path) -> None:
    created = create(tmp_path / "r")
    key = tmp_path / "usb-stick"
    (tmp_path / "r" / "ca.key").rename(key)
    with pytest.raises(IdentityError, match="missing"):
        rotate_leaf(tmp_path / "r", "localhost", NOW)
    rotate_leaf(tmp_path / "r", "localhost", NOW, key)
    rotated = load_identity(tmp_path / "r", NOW)
    assert rotated.fingerprint == created.fingerprint
    assert rotated.credentials.chain[0] != created.credentials.chain[0]
    assert stat.S_IMODE((tmp_path / "r" / "server.key").stat().st_mode) == 0o600
    assert {path.name for path in (tmp_path / "r").iterdir()} == set(FILES) - {"ca.key"}


def test_rotation_with_another_authoritys_key(tmp_path: Path) -> None:
    created = create(tmp_path / "a")
    create(tmp_path / "b")
    with pytest.raises(IdentityError, match="is not the key of"):
        rotate_leaf(tmp_path / "a", "localhost", NOW, tmp_path / "b" / "ca.key")
    assert load_identity(tmp_path / "a", NOW) == created


@pytest.mark.parametrize("step", [0, 1, 2])
def test_interrupted_rotation(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever file is the last to be put in place, the router starts: as before, or as after."""
    created = create(tmp_path)
    replace, replaced = Path.replace, 0

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal replaced
        if replaced == step:
            raise KeyboardInterrupt
        replaced += 1
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rotate_leaf(tmp_path, "localhost", NOW)
    loaded = load_identity(tmp_path, NOW)
    assert loaded.fingerprint == created.fingerprint
    assert (loaded == created) is (step < 2)
    rotate_leaf(tmp_path, "localhost", NOW)
    assert load_identity(tmp_path, NOW) not in (loaded, created)
