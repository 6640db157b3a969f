"""Keys at rest: encrypted with a random key, which is itself encrypted with a passphrase.

A store without a passphrase keeps keys in plaintext. A change of the passphrase re-encrypts only
the random key.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import overload

from nacl import bindings as nacl
from nacl.exceptions import CryptoError as NaclCryptoError

from heliograph.agent.errors import AgentError, NotEncrypted, PassphraseNeeded, WrongPassphrase

KEY_SIZE = nacl.crypto_secretbox_KEYBYTES
NONCE_SIZE = nacl.crypto_secretbox_NONCEBYTES


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of Argon2id; kept in each store, so that later stores can use a higher one."""

    operations: int = nacl.crypto_pwhash_argon2id_OPSLIMIT_INTERACTIVE
    memory: int = nacl.crypto_pwhash_argon2id_MEMLIMIT_INTERACTIVE


@dataclass(frozen=True, slots=True)
class Lock:
    """What a store keeps to verify its passphrase; all None if it has none."""

    salt: bytes | None = None
    operations: int | None = None
    memory: int | None = None
    wrapped_key: bytes | None = None


class Vault:
    """Encrypts values that go into the store, and decrypts those that come out of it."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    @property
    def is_sealed(self) -> bool:
        return self._key is not None

    @overload
    def seal(self, plain: bytes) -> bytes: ...

    @overload
    def seal(self, plain: bytes | None) -> bytes | None: ...

    def seal(self, plain: bytes | None) -> bytes | None:
        if plain is None or self._key is None:
            return plain
        nonce = nacl.randombytes(NONCE_SIZE)
        return nonce + nacl.crypto_secretbox(plain, nonce, self._key)

    @overload
    def open(self, sealed: bytes) -> bytes: ...

    @overload
    def open(self, sealed: bytes | None) -> bytes | None: ...

    def open(self, sealed: bytes | None) -> bytes | None:
        if sealed is None or self._key is None:
            return sealed
        try:
            return nacl.crypto_secretbox_open(sealed[NONCE_SIZE:], sealed[:NONCE_SIZE], self._key)
        except NaclCryptoError:
            raise AgentError(
                "the store is damaged, a key in it cannot be decrypted: restore a backup"
            ) from None


@dataclass(frozen=True, slots=True)
class Passphrase:
    """A passphrase as the user typed it. It is never empty."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.text:
            raise AgentError("the passphrase is empty: give one, or none at all")

    def key(self, salt: bytes, cost: Cost) -> bytes:
        return _derive(self.text, salt, cost)


@lru_cache(maxsize=8)
def _derive(text: str, salt: bytes, cost: Cost) -> bytes:
    """Derive a key. Cached, because an extension opens its store for each push."""
    return nacl.crypto_pwhash_alg(
        KEY_SIZE,
        text.encode(),
        salt,
        cost.operations,
        cost.memory,
        nacl.crypto_pwhash_ALG_ARGON2ID13,
    )


def new_lock(passphrase: Passphrase | None, cost: Cost) -> tuple[Lock, Vault]:
    """Create the lock of a new store."""
    if passphrase is None:
        return Lock(), Vault(None)
    key = nacl.randombytes(KEY_SIZE)
    return wrap(key, passphrase, cost), Vault(key)


def wrap(key: bytes, passphrase: Passphrase, cost: Cost) -> Lock:
    salt = nacl.randombytes(nacl.crypto_pwhash_SALTBYTES)
    wrapped = Vault(passphrase.key(salt, cost)).seal(key)
    return Lock(salt, cost.operations, cost.memory, wrapped)


def unlock(lock: Lock, passphrase: Passphrase | None) -> Vault:
    """Return the vault of an existing store."""
    if (
        lock.wrapped_key is None
        or lock.salt is None
        or lock.operations is None
        or lock.memory is None
    ):
        if passphrase is not None:
            raise NotEncrypted("this store has no passphrase: open it without one")
        return Vault(None)
    if passphrase is None:
        raise PassphraseNeeded("this store is encrypted: give its passphrase")
    try:
        outer = Vault(passphrase.key(lock.salt, Cost(lock.operations, lock.memory)))
        return Vault(outer.open(lock.wrapped_key))
    except AgentError:
        raise WrongPassphrase("wrong passphrase for this store: try again") from None
