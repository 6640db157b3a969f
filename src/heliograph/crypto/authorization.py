"""Authorization of commands: signatures, authenticators, and the same work for unknown entities.

A command key may be Ed25519, Ed448 or X25519. With X25519 a command carries a box of its hash under
the secret agreed with the router's session key, so that nobody else can verify who sent it.
"""

import hashlib
from hmac import compare_digest

from heliograph.crypto.boxes import box_with, nonce_from, open_box_with
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import box_key, private_algorithm_of, sign, verify
from heliograph.wire.keys import SPKI_PREFIX, Algorithm, public_key_algorithm
from heliograph.wire.transmissions import (
    AUTHENTICATOR_SIZE,
    ED448_SIGNATURE_SIZE,
    ED25519_SIGNATURE_SIZE,
)

# Points hashed from text, so that nobody has their private keys: checking a valid authorization
# takes longer, so one that is valid for a dummy key would reveal that an entity is unknown.
_DUMMY_KEYS = {
    ED25519_SIGNATURE_SIZE: SPKI_PREFIX[Algorithm.ED25519]
    + bytes.fromhex("11d638cddbf8b737f90aba6ebf34ffac9216c4396efdcb739f574d36b92f11e1"),
    ED448_SIGNATURE_SIZE: SPKI_PREFIX[Algorithm.ED448]
    + bytes.fromhex(
        "54f42ae9f3a2c1b3377ee2f0dbaca4b2098fd09e777fc4564377518447c242c9"
        "4a7b4dfa96c7df6350279013cb77450ef152bc8782ec790a00"
    ),
    AUTHENTICATOR_SIZE: SPKI_PREFIX[Algorithm.X25519]
    + bytes.fromhex("d8143d4c3aa1c93968dee46c3e8949eed5f1c8aa73ecca648a90fc81bcd9b6b2"),
}

_KEY_OF_SIZE = {
    ED25519_SIGNATURE_SIZE: Algorithm.ED25519,
    ED448_SIGNATURE_SIZE: Algorithm.ED448,
    AUTHENTICATOR_SIZE: Algorithm.X25519,
}


def authenticator(public: bytes, private: bytes, corr_id: bytes, authorized: bytes) -> bytes:
    """Return 80 bytes that only holders of one of the two private keys can make or check."""
    digest = hashlib.sha512(authorized).digest()
    return box_with(box_key(public, private), nonce_from(corr_id), digest)


def verify_authenticator(
    public: bytes, private: bytes, corr_id: bytes, authorized: bytes, auth: bytes
) -> bool:
    try:
        digest = open_box_with(box_key(public, private), nonce_from(corr_id), auth)
    except CryptoError:
        return False
    return compare_digest(digest, hashlib.sha512(authorized).digest())


def authorize(
    private: bytes, server_session_key: bytes | None, corr_id: bytes, authorized: bytes
) -> bytes:
    """Authorize a command with a client's key of any type."""
    if private_algorithm_of(private) is not Algorithm.X25519:
        return sign(private, authorized)
    if server_session_key is None:
        raise CryptoError("the router offered no session key to authenticate with")
    return authenticator(server_session_key, private, corr_id, authorized)


def verify_authorization(
    public: bytes | None,
    session_private: bytes | None,
    corr_id: bytes,
    authorized: bytes,
    auth: bytes,
) -> bool:
    """Check a command against its entity's key, or do the same work against none.

    An unknown entity (`public` is None) and a key of another type cost what a wrong key costs: the
    work depends only on the type of the authorization that was supplied.
    """
    algorithm = _KEY_OF_SIZE.get(len(auth))
    if algorithm is None:
        return False
    known = public is not None and public_key_algorithm(public) is algorithm
    key = public if public is not None and known else _DUMMY_KEYS[len(auth)]
    if algorithm is not Algorithm.X25519:
        return verify(key, auth, authorized) and known
    if session_private is None:
        return False
    return verify_authenticator(key, session_private, corr_id, authorized, auth) and known
