"""Tests of `heliograph.crypto.authorization`."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from hypothesis import assume, given, strategies as st
from nacl import bindings

from heliograph.crypto import authorization, boxes, keys
from heliograph.crypto.authorization import (
    authenticator,
    authorize,
    verify_authenticator,
    verify_authorization,
)
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, public_key, verify
from heliograph.wire.keys import KEY_SIZE, PKCS8_PREFIX, SPKI_PREFIX, Algorithm
from tests.crypto.golden import golden
from tests.keys import fixed_key_pair

SIZE = {Algorithm.X25519: 80, Algorithm.ED25519: 64, Algorithm.ED448: 114}
OTHER_SIZES = sorted({*range(256)} - {*SIZE.values()})
LOW_ORDER = SPKI_PREFIX[Algorithm.X25519] + bytes(32)

SERVER = fixed_key_pair(Algorithm.X25519, "server")
CLIENT = {algorithm: fixed_key_pair(algorithm, "client") for algorithm in Algorithm}
STRANGER = {algorithm: fixed_key_pair(algorithm, "stranger") for algorithm in Algorithm}
CORR_ID = bytes(range(24))
AUTHORIZED = b"the authorized bytes"

corr_ids = st.binary(max_size=40)
messages = st.binary(max_size=300)


@st.composite
def private_keys(draw: st.DrawFn, algorithms: list[Algorithm] | None = None) -> bytes:
    algorithm = draw(st.sampled_from(algorithms or list(Algorithm)))
    size = KEY_SIZE[algorithm]
    return PKCS8_PREFIX[algorithm] + draw(st.binary(min_size=size, max_size=size))


x25519 = private_keys([Algorithm.X25519])


# Authenticators


@pytest.mark.parametrize("vector", golden("cb_authenticator"))
def test_golden_authenticators(vector: dict[str, Any]) -> None:
    client, client_public, server, server_public, corr_id, message, auth = (
        bytes.fromhex(vector[name])
        for name in (
            "client_private_pkcs8",
            "client_public_spki",
            "server_private_pkcs8",
            "server_public_spki",
            "nonce_corrId",
            "msg",
            "authenticator",
        )
    )
    assert authenticator(server_public, client, corr_id, message) == auth
    assert authorize(client, server_public, corr_id, message) == auth
    assert verify_authenticator(client_public, server, corr_id, message, auth)
    assert verify_authorization(client_public, server, corr_id, message, auth)


@given(x25519, x25519, corr_ids, messages)
def test_authenticators_round_trip(
    client: bytes, server: bytes, corr_id: bytes, message: bytes
) -> None:
    auth = authenticator(public_key(server), client, corr_id, message)
    assert len(auth) == 80
    assert auth == authenticator(public_key(client), server, corr_id, message)
    assert verify_authenticator(public_key(client), server, corr_id, message, auth)
    assert verify_authenticator(public_key(server), client, corr_id, message, auth)


@given(corr_ids, messages, st.integers(0, 79), st.integers(0, 7))
def test_other_authenticators_do_not_fit(
    corr_id: bytes, message: bytes, index: int, bit: int
) -> None:
    client, stranger = CLIENT[Algorithm.X25519], STRANGER[Algorithm.X25519]
    auth = authenticator(SERVER.public, client.private, corr_id, message)
    flipped = bytearray(auth)
    flipped[index] ^= 1 << bit
    other_id = bytes((corr_id[0] ^ 1,)) + corr_id[1:] if corr_id else b"\1"
    for attempt in (
        (stranger.public, SERVER.private, corr_id, message, auth),
        (client.public, stranger.private, corr_id, message, auth),
        (client.public, SERVER.private, other_id, message, auth),
        (client.public, SERVER.private, corr_id, message + b"\0", auth),
        (client.public, SERVER.private, corr_id, message, bytes(flipped)),
        (client.public, SERVER.private, corr_id, message, auth[:-1]),
        (client.public, SERVER.private, corr_id, message, auth + b"\0"),
        (client.public, SERVER.private, corr_id, message, b""),
    ):
        assert not verify_authenticator(*attempt)


def test_a_box_of_something_else_is_no_authenticator() -> None:
    client = CLIENT[Algorithm.X25519]
    key = keys.box_key(SERVER.public, client.private)
    for content in (b"", AUTHORIZED, hashlib.sha512(AUTHORIZED).digest()[:-1], bytes(64)):
        auth = bindings.crypto_secretbox_easy(content, CORR_ID, key)
        assert not verify_authenticator(client.public, SERVER.private, CORR_ID, AUTHORIZED, auth)


def test_keys_that_do_not_agree_make_no_authenticator() -> None:
    client = CLIENT[Algorithm.X25519]
    for public in (LOW_ORDER, CLIENT[Algorithm.ED25519].public, b""):
        with pytest.raises(CryptoError):
            authenticator(public, client.private, CORR_ID, AUTHORIZED)
        with pytest.raises(CryptoError):
            authorize(client.private, public, CORR_ID, AUTHORIZED)
        assert not verify_authenticator(public, SERVER.private, CORR_ID, AUTHORIZED, bytes(80))
    assert not verify_authorization(LOW_ORDER, SERVER.private, CORR_ID, AUTHORIZED, bytes(80))


# Authorizations


@given(private_keys(), x25519, corr_ids, messages)
def test_authorizations_round_trip(
    client: bytes, server: bytes, corr_id: bytes, message: bytes
) -> None:
    auth = authorize(client, public_key(server), corr_id, message)
    assert len(auth) == SIZE[keys.private_algorithm_of(client)]
    assert verify_authorization(public_key(client), server, corr_id, message, auth)
    assert not verify_authorization(public_key(client), server, corr_id, message + b"\0", auth)
    assert not verify_authorization(None, server, corr_id, message, auth)


@given(private_keys([Algorithm.ED25519, Algorithm.ED448]), corr_ids, messages)
def test_signatures_need_no_session_key(client: bytes, corr_id: bytes, message: bytes) -> None:
    auth = authorize(client, None, corr_id, message)
    assert auth == keys.sign(client, message)
    assert verify_authorization(public_key(client), None, corr_id, message, auth)


def test_authenticators_need_a_session_key() -> None:
    client = CLIENT[Algorithm.X25519]
    with pytest.raises(CryptoError, match="no session key"):
        authorize(client.private, None, CORR_ID, AUTHORIZED)
    auth = authorize(client.private, SERVER.public, CORR_ID, AUTHORIZED)
    for public in (client.public, None):
        assert not verify_authorization(public, None, CORR_ID, AUTHORIZED, auth)


def test_only_a_private_key_authorizes() -> None:
    for private in (b"", CLIENT[Algorithm.ED25519].public):
        with pytest.raises(CryptoError, match="private key"):
            authorize(private, SERVER.public, CORR_ID, AUTHORIZED)


STORED: dict[str, bytes | None] = {
    "unknown": None,
    "malformed": b"not a key",
    **{algorithm.value: CLIENT[algorithm].public for algorithm in Algorithm},
}


def flip(auth: bytes) -> bytes:
    return bytes((auth[0] ^ 1,)) + auth[1:]


@pytest.mark.parametrize("supplied", Algorithm, ids=lambda algorithm: algorithm.value)
@pytest.mark.parametrize("stored", STORED)
def test_every_stored_key_against_every_authorization(stored: str, supplied: Algorithm) -> None:
    right = authorize(CLIENT[supplied].private, SERVER.public, CORR_ID, AUTHORIZED)
    wrong = [
        authorize(STRANGER[supplied].private, SERVER.public, CORR_ID, AUTHORIZED),
        authorize(CLIENT[supplied].private, SERVER.public, CORR_ID, AUTHORIZED + b"\0"),
        flip(right),
        bytes(len(right)),
        b"\xff" * len(right),
    ]
    fits = stored == supplied.value
    public = STORED[stored]
    assert verify_authorization(public, SERVER.private, CORR_ID, AUTHORIZED, right) is fits
    for auth in wrong:
        assert not verify_authorization(public, SERVER.private, CORR_ID, AUTHORIZED, auth)
    # Only an authenticator depends on the session and on the correlation ID.
    other_session = STRANGER[Algorithm.X25519].private
    signature = supplied is not Algorithm.X25519
    for session, corr_id in ((other_session, CORR_ID), (None, CORR_ID), (SERVER.private, b"")):
        fits_still = fits and signature
        assert verify_authorization(public, session, corr_id, AUTHORIZED, right) is fits_still


@pytest.mark.parametrize("stored", STORED)
def test_authorizations_of_other_sizes_never_fit(stored: str) -> None:
    for size in OTHER_SIZES:
        assert not verify_authorization(
            STORED[stored], SERVER.private, CORR_ID, AUTHORIZED, bytes(size)
        )


@given(st.sampled_from(list(Algorithm)), st.data())
def test_stored_keys_that_are_no_points_never_fit(supplied: Algorithm, data: st.DataObject) -> None:
    size = KEY_SIZE[supplied]
    public = SPKI_PREFIX[supplied] + data.draw(st.binary(min_size=size, max_size=size))
    assume(public != CLIENT[supplied].public)
    auth = data.draw(
        st.one_of(
            st.binary(min_size=SIZE[supplied], max_size=SIZE[supplied]),
            st.just(authorize(CLIENT[supplied].private, SERVER.public, CORR_ID, AUTHORIZED)),
        )
    )
    assert not verify_authorization(public, SERVER.private, CORR_ID, AUTHORIZED, auth)


# The same work for an unknown entity


class Work:
    """The expensive operations that ran, each with the size of what it worked on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, int]] = []
        for module, name in (
            (bindings, "crypto_sign_open"),
            (bindings, "crypto_box_beforenm"),
            (boxes, "_open"),
        ):
            monkeypatch.setattr(module, name, self._counted(name, getattr(module, name)))
        monkeypatch.setattr(hashlib, "sha512", self._counted("sha512", hashlib.sha512))
        real = Ed448PublicKey
        work = self

        class Counted:
            def __init__(self, raw: bytes) -> None:
                self.key = real.from_public_bytes(raw)

            @classmethod
            def from_public_bytes(cls, raw: bytes) -> "Counted":
                return cls(raw)

            def verify(self, signature: bytes, message: bytes) -> None:
                work.done.append(("Ed448 verify", len(message)))
                self.key.verify(signature, message)

        monkeypatch.setattr(keys, "Ed448PublicKey", Counted)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(data: bytes, *rest: bytes) -> Any:
            self.done.append((name, len(data)))
            return function(data, *rest)

        return counted

    def of(self, public: bytes | None, auth: bytes, authorized: bytes) -> list[tuple[str, int]]:
        self.done = []
        assert not verify_authorization(public, SERVER.private, CORR_ID, authorized, auth)
        return self.done


WORK = {
    Algorithm.ED25519: [("crypto_sign_open", 64 + len(AUTHORIZED))],
    Algorithm.ED448: [("Ed448 verify", len(AUTHORIZED))],
    Algorithm.X25519: [("crypto_box_beforenm", 32), ("_open", 80)],
}


@pytest.mark.parametrize("supplied", Algorithm, ids=lambda algorithm: algorithm.value)
def test_an_unknown_entity_costs_what_a_wrong_key_costs(
    supplied: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    auths = [
        authorize(STRANGER[supplied].private, SERVER.public, CORR_ID, AUTHORIZED),
        bytes(SIZE[supplied]),
        b"\xff" * SIZE[supplied],
    ]
    work = Work(monkeypatch)
    for auth in auths:
        wrong_key = work.of(CLIENT[supplied].public, auth, AUTHORIZED)
        assert wrong_key == WORK[supplied]
        for public in STORED.values():
            assert work.of(public, auth, AUTHORIZED) == wrong_key


@pytest.mark.parametrize("supplied", Algorithm, ids=lambda algorithm: algorithm.value)
def test_the_right_key_of_another_entity_costs_the_same(
    supplied: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker's own key does not tell whether somebody else's entity exists."""
    auth = authorize(CLIENT[supplied].private, SERVER.public, CORR_ID, AUTHORIZED)
    work = Work(monkeypatch)
    others = [STRANGER[algorithm].public for algorithm in Algorithm]
    for public in (None, *others):
        assert work.of(public, auth, AUTHORIZED) == WORK[supplied]


def test_authorizations_of_other_sizes_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    for public in STORED.values():
        for size in OTHER_SIZES:
            assert work.of(public, bytes(size), AUTHORIZED) == []


# Dummy keys


def hashed_point(algorithm: Algorithm, size: int, is_point: Callable[[bytes], bool]) -> bytes:
    """The first point among the hashes of a text and a counter."""
    counter = 0
    while True:
        text = f"Heliograph dummy {algorithm.value} key {counter}".encode()
        raw = hashlib.shake_256(text).digest(size)
        if is_point(raw):
            return raw
        counter += 1


def is_ed448_point(raw: bytes) -> bool:
    prime = 2**448 - 2**224 - 1
    y = int.from_bytes(raw, "little")
    x_squared = (1 - y * y) * pow(1 + 39081 * y * y, -1, prime) % prime
    return y < prime and pow(x_squared, (prime - 1) // 2, prime) == 1


def test_nobody_has_the_private_keys_of_the_dummy_keys() -> None:
    assert {
        64: SPKI_PREFIX[Algorithm.ED25519]
        + hashed_point(Algorithm.ED25519, 32, bindings.crypto_core_ed25519_is_valid_point),
        114: SPKI_PREFIX[Algorithm.ED448]
        + hashed_point(Algorithm.ED448, 56, is_ed448_point)
        + b"\0",
        80: SPKI_PREFIX[Algorithm.X25519] + hashed_point(Algorithm.X25519, 32, lambda _: True),
    } == authorization._DUMMY_KEYS


@pytest.mark.parametrize("supplied", Algorithm, ids=lambda algorithm: algorithm.value)
def test_what_fits_a_dummy_key_authorizes_nothing(
    supplied: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    dummies = {SIZE[algorithm]: STRANGER[algorithm].public for algorithm in Algorithm}
    monkeypatch.setattr(authorization, "_DUMMY_KEYS", dummies)
    auth = authorize(STRANGER[supplied].private, SERVER.public, CORR_ID, AUTHORIZED)
    for public in STORED.values():
        assert not verify_authorization(public, SERVER.private, CORR_ID, AUTHORIZED, auth)


def test_dummy_keys_take_part_in_the_whole_work() -> None:
    """A key that is no point would be refused early."""
    keys.dh(authorization._DUMMY_KEYS[80], SERVER.private)
    ed25519 = authorization._DUMMY_KEYS[64][12:]
    assert bindings.crypto_core_ed25519_is_valid_point(ed25519)
    assert is_ed448_point(authorization._DUMMY_KEYS[114][12:-1])


# Secrets


def test_errors_do_not_show_keys() -> None:
    client = KeyPair(*CLIENT[Algorithm.X25519])
    attempts: list[Callable[[], object]] = [
        lambda: authorize(client.private, None, CORR_ID, AUTHORIZED),
        lambda: authorize(client.private, LOW_ORDER, CORR_ID, AUTHORIZED),
        lambda: authorize(client.private + b"\0", SERVER.public, CORR_ID, AUTHORIZED),
        lambda: authenticator(b"", client.private, CORR_ID, AUTHORIZED),
    ]
    for attempt in attempts:
        with pytest.raises(CryptoError) as caught:
            attempt()
        text = repr(caught.value)
        assert "authorized bytes" not in text
        assert client.private[16:].hex() not in text
        assert repr(client.private[16:])[2:-1] not in text


def test_a_signature_made_for_another_entity_verifies_there_only() -> None:
    """The work above is real: the same functions accept what they should."""
    for algorithm in (Algorithm.ED25519, Algorithm.ED448):
        auth = authorize(CLIENT[algorithm].private, None, CORR_ID, AUTHORIZED)
        assert verify(CLIENT[algorithm].public, auth, AUTHORIZED)
        assert not verify(STRANGER[algorithm].public, auth, AUTHORIZED)
