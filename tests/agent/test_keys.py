"""Keys at rest."""

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.errors import (
    AgentError,
    NotEncrypted,
    PassphraseNeeded,
    WrongPassphrase,
)
from heliograph.agent.keys import Cost, Lock, Passphrase, Vault, new_lock, unlock, wrap
from tests.agent.support import CHEAP


@given(st.binary(max_size=200))
def test_what_is_sealed_opens_and_is_hidden(plain: bytes) -> None:
    vault = Vault(bytes(range(32)))
    sealed = vault.seal(plain)
    assert vault.open(sealed) == plain
    assert len(plain) < 8 or plain not in sealed
    assert vault.seal(plain) != sealed


def test_without_a_passphrase_nothing_is_changed() -> None:
    lock, vault = new_lock(None, CHEAP)
    assert lock == Lock()
    assert vault.seal(b"key") == vault.open(b"key") == b"key"
    assert not vault.is_sealed
    assert unlock(lock, None).open(b"key") == b"key"


def test_nothing_stays_nothing() -> None:
    vault = Vault(bytes(32))
    assert vault.seal(None) is None
    assert vault.open(None) is None


def test_the_passphrase_opens_again() -> None:
    lock, vault = new_lock(Passphrase("correct horse"), CHEAP)
    sealed = vault.seal(b"key")
    assert unlock(lock, Passphrase("correct horse")).open(sealed) == b"key"


def test_a_wrong_passphrase_is_said_to_be_wrong() -> None:
    lock, _ = new_lock(Passphrase("correct horse"), CHEAP)
    with pytest.raises(WrongPassphrase, match="wrong passphrase"):
        unlock(lock, Passphrase("battery staple"))


def test_a_missing_passphrase_is_asked_for() -> None:
    lock, _ = new_lock(Passphrase("correct horse"), CHEAP)
    with pytest.raises(PassphraseNeeded, match="give its passphrase"):
        unlock(lock, None)


def test_a_passphrase_for_an_open_store_is_refused() -> None:
    with pytest.raises(NotEncrypted, match="without one"):
        unlock(Lock(), Passphrase("correct horse"))


def test_an_empty_passphrase_is_none() -> None:
    with pytest.raises(AgentError, match="empty"):
        Passphrase("")


def test_another_passphrase_for_the_same_key() -> None:
    key = bytes(range(32))
    sealed = Vault(key).seal(b"secret")
    lock = wrap(key, Passphrase("second"), CHEAP)
    assert unlock(lock, Passphrase("second")).open(sealed) == b"secret"


def test_damage_is_noticed() -> None:
    vault = Vault(bytes(32))
    sealed = bytearray(vault.seal(b"key"))
    sealed[-1] ^= 1
    with pytest.raises(AgentError, match="damaged"):
        vault.open(bytes(sealed))


def test_no_secret_shows() -> None:
    assert "horse" not in repr(Passphrase("correct horse"))


def test_the_usual_cost_is_not_cheap() -> None:
    assert Cost().memory >= 64 * 1024 * 1024
