"""Tests of `heliograph.crypto.chains`."""

import hashlib
import importlib.util
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import assume, given, strategies as st

from heliograph.crypto.boxes import TAG_SIZE, box, open_box
from heliograph.crypto.chains import BlockCipher, ChainStep, chain_init, chain_step, hkdf
from heliograph.crypto.errors import CryptoError
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import pad
from heliograph.wire.transmissions import SMP_BLOCK_SIZE
from tests.crypto.golden import golden

SESSION = bytes(range(32))
SECRET = bytes(range(100, 132))
SIZE = 256

keys = st.binary(min_size=32, max_size=32)
contents = st.binary(max_size=SIZE - TAG_SIZE - 2)


def pair() -> tuple[BlockCipher, BlockCipher]:
    return BlockCipher.client(SESSION, SECRET), BlockCipher.server(SESSION, SECRET)


# HKDF


@pytest.mark.parametrize(
    ("ikm", "salt", "info", "okm"),
    [
        # The inputs of RFC 5869, A.1 to A.3, with SHA-512.
        (
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "832390086cda71fb47625bb5ceb168e4c8e26a1a16ed34d9fc7fe92c1481579338da362cb8d9f925d7cb",
        ),
        (
            bytes(range(80)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            (
                "ce6c97192805b346e6161e821ed165673b84f400a2b514b2fe23d84cd189ddf1b695b48cbd1c8388"
                "441137b3ce28f16aa64ba33ba466b24df6cfcb021ecff235f6a2056ce3af1de44d572097a8505d9e7a93"
            ),
        ),
        (
            b"\x0b" * 22,
            b"",
            b"",
            "f5fa02b18298a72a8c23898a8703472c6eb179dc204c03425c970e3b164bf90fff22d04836d0e2343bac",
        ),
    ],
)
def test_rfc_5869_inputs(ikm: bytes, salt: bytes, info: bytes, okm: str) -> None:
    expected = bytes.fromhex(okm)
    assert hkdf(salt, ikm, info, len(expected)) == expected


@given(st.binary(max_size=200), st.binary(max_size=100), st.binary(max_size=50), st.data())
def test_hkdf_is_the_librarys(salt: bytes, ikm: bytes, info: bytes, data: st.DataObject) -> None:
    length = data.draw(st.one_of(st.integers(1, 300), st.sampled_from([64, 88, 128, 255 * 64])))
    assert hkdf(salt, ikm, info, length) == HKDF(SHA512(), length, salt, info).derive(ikm)


@pytest.mark.parametrize("vector", golden("hkdf_sha512"))
def test_golden_hkdf(vector: dict[str, Any]) -> None:
    salt, ikm, okm = (bytes.fromhex(vector[name]) for name in ("salt", "ikm", "okm"))
    assert hkdf(salt, ikm, vector["info"].encode(), vector["len"]) == okm


# Chains


def test_golden_chains() -> None:
    (init,) = golden("sbc_init")
    (derived,) = golden("hkdf_sha512")
    steps = [
        (bytes.fromhex(vector["sbKey"]), bytes.fromhex(vector["nonce"]))
        for vector in golden("sbc_hkdf")
    ]
    chains = chain_init(bytes.fromhex(init["salt_sessionId"]), bytes.fromhex(init["secret"]))
    assert b"".join(chains).hex() == derived["okm"]
    assert len(steps) == 4
    for chain, expected in zip(chains, (steps[:2], steps[2:]), strict=True):
        first = chain_step(chain)
        second = chain_step(first.next)
        assert [first[1:], second[1:]] == expected


@given(keys, st.binary(max_size=64))
def test_chains_have_the_documented_sizes(secret: bytes, session_id: bytes) -> None:
    send, receive = chain_init(session_id, secret)
    assert (len(send), len(receive)) == (32, 32)
    assert send != receive
    following, key, nonce = chain_step(send)
    assert (len(following), len(key), len(nonce)) == (32, 32, 24)
    assert len({send, following, key}) == 3


def test_a_python_without_its_own_sha_512_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("heliograph.crypto.chains")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    hashed: list[bytes] = []

    def sha512(data: bytes) -> Any:
        hashed.append(data)
        return original(data)

    original = hashlib.sha512
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda _: None)
        patch.setattr(hashlib, "sha512", sha512)
        spec.loader.exec_module(fresh)
    hashed.clear()
    assert fresh.chain_step(SECRET) == chain_step(SECRET)
    assert hashed


# Blocks


def test_the_bytes_of_the_first_blocks() -> None:
    client, server = pair()
    server_send, server_receive = chain_init(SESSION, SECRET)
    for sender, chain in ((server, server_send), (client, server_receive)):
        for content in (b"first", b"second"):
            chain, key, nonce = chain_step(chain)
            expected = box(key, nonce, pad(content, SMP_BLOCK_SIZE - TAG_SIZE))
            assert len(expected) == SMP_BLOCK_SIZE
            assert sender.encrypt(content, SMP_BLOCK_SIZE) == expected


@given(keys, st.binary(max_size=64), st.lists(st.tuples(st.booleans(), contents), max_size=12))
def test_client_and_server_meet(
    secret: bytes, session_id: bytes, exchange: list[tuple[bool, bytes]]
) -> None:
    client = BlockCipher.client(session_id, secret)
    server = BlockCipher.server(session_id, secret)
    seen = set()
    for from_client, content in exchange:
        sender, receiver = (client, server) if from_client else (server, client)
        block = sender.encrypt(content, SIZE)
        assert len(block) == SIZE
        assert receiver.decrypt(block) == content
        seen.add(block)
    assert len(seen) == len(exchange)


@given(contents)
def test_two_of_a_side_do_not_meet(content: bytes) -> None:
    for make in (BlockCipher.client, BlockCipher.server):
        block = make(SESSION, SECRET).encrypt(content, SIZE)
        with pytest.raises(CryptoError):
            make(SESSION, SECRET).decrypt(block)


@given(keys, keys, st.binary(max_size=40), st.binary(max_size=40), contents)
def test_another_session_or_secret_does_not_meet(
    secret: bytes, other_secret: bytes, session: bytes, other_session: bytes, content: bytes
) -> None:
    # HMAC pads its key with zero bytes, so these would be one session.
    assume(secret != other_secret and session.rstrip(b"\0") != other_session.rstrip(b"\0"))
    block = BlockCipher.client(session, secret).encrypt(content, SIZE)
    for server in (
        BlockCipher.server(session, other_secret),
        BlockCipher.server(other_session, secret),
    ):
        with pytest.raises(CryptoError):
            server.decrypt(block)


def test_replayed_blocks_are_refused() -> None:
    client, server = pair()
    block = client.encrypt(b"once", SIZE)
    assert server.decrypt(block) == b"once"
    with pytest.raises(CryptoError):
        server.decrypt(block)


def test_reflected_blocks_are_refused() -> None:
    client, _ = pair()
    with pytest.raises(CryptoError):
        client.decrypt(client.encrypt(b"mine", SIZE))


def test_reordered_blocks_are_refused() -> None:
    client, server = pair()
    first, second = client.encrypt(b"first", SIZE), client.encrypt(b"second", SIZE)
    for block in (second, first):
        with pytest.raises(CryptoError):
            server.decrypt(block)


@given(contents, st.integers(0, SIZE - 1), st.integers(0, 7))
def test_tampered_blocks_are_refused(content: bytes, index: int, bit: int) -> None:
    client, server = pair()
    block = bytearray(client.encrypt(content, SIZE))
    block[index] ^= 1 << bit
    with pytest.raises(CryptoError):
        server.decrypt(bytes(block))


@given(st.binary(max_size=SIZE))
def test_garbage_is_refused(garbage: bytes) -> None:
    _, server = pair()
    with pytest.raises(CryptoError):
        server.decrypt(garbage)


@given(st.lists(st.sampled_from(["tampered", "short", "empty"]), min_size=1, max_size=5))
def test_a_refused_block_advances_the_chain(damages: list[str]) -> None:
    """One bad block costs itself only: the next is opened with the next key."""
    client, server = pair()
    for damage in damages:
        block = client.encrypt(b"lost", SIZE)
        bad = {
            "tampered": bytes((block[0] ^ 1,)) + block[1:],
            "short": block[: TAG_SIZE - 1],
            "empty": b"",
        }[damage]
        with pytest.raises(CryptoError):
            server.decrypt(bad)
    assert server.decrypt(client.encrypt(b"found", SIZE)) == b"found"
    assert client.decrypt(server.encrypt(b"back", SIZE)) == b"back"


@pytest.mark.parametrize("padded", [b"", b"\0", b"\0\1", b"\xff\xff" + b"#" * 100])
def test_malformed_padding_is_refused_and_advances_the_chain(padded: bytes) -> None:
    client, server = pair()
    _, key, nonce = chain_step(chain_init(SESSION, SECRET)[1])
    client.encrypt(b"replaced", SIZE)
    with pytest.raises(CryptoError, match="padding"):
        server.decrypt(box(key, nonce, padded))
    assert server.decrypt(client.encrypt(b"next", SIZE)) == b"next"


@pytest.mark.parametrize("excess", [1, 2, 1000])
def test_content_that_does_not_fit_leaves_the_chain_alone(excess: int) -> None:
    """Nothing was sent, so both sides still agree on the next key."""
    client, server = pair()
    largest = bytes(SIZE - TAG_SIZE - 2)
    with pytest.raises(WireError) as caught:
        client.encrypt(largest + bytes(excess), SIZE)
    assert caught.value.error is ErrorCode.LARGE_MSG
    assert server.decrypt(client.encrypt(largest, SIZE)) == largest


# Secrets


def test_keys_are_not_shown() -> None:
    step = chain_step(SECRET)
    client, server = pair()
    okm = b"".join(chain_init(SESSION, SECRET))
    texts = [repr(step), str(step), f"{step}", repr([step]), repr(client), str(server)]
    for text in texts:
        for secret in (SECRET, step.next, step.key, step.nonce, okm[:32], okm[32:]):
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text
    assert repr(ChainStep(b"a", b"b", b"c")) == "ChainStep(...)"


def test_errors_do_not_show_keys_or_plaintext() -> None:
    client, server = pair()
    _, key, nonce = chain_step(chain_init(SESSION, SECRET)[1])
    malformed = box(key, nonce, b"\xff\xffsecret plaintext")
    assert open_box(key, nonce, malformed)
    with pytest.raises(CryptoError) as refused:
        server.decrypt(malformed)
    with pytest.raises(WireError) as oversized:
        client.encrypt(b"secret plaintext" * 100, SIZE)
    errors: list[BaseException | None] = [refused.value, oversized.value, refused.value.__context__]
    for error in errors:
        text = repr(error)
        assert "plaintext" not in text
        for secret in (SECRET, key, nonce):
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text
