import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, strategies as st

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from heliograph.crypto.webpush import MAX_BODY, MAX_MESSAGE, decrypt, encrypt
from heliograph.wire.primitives import b64decode

# RFC 8291, section 5 and appendix A
PLAINTEXT = b"When I grow up, I want to be a watermelon"
SENDER = P256Key.from_secret(b64decode("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"))
RECEIVER = P256Key.from_secret(b64decode("q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"))
RECEIVER_PUBLIC = b64decode(
    "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
)
SALT = b64decode("DGv6ra1nlYgDCS1FRnbzlw")
AUTH = b64decode("BTBZMqHH6r4Tts7J_aSIgg")
BODY = b64decode(
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS"
    "6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qu"
    "lcy4a-fN"
)


def test_rfc_8291() -> None:
    assert RECEIVER.public == RECEIVER_PUBLIC
    assert encrypt(PLAINTEXT, RECEIVER.public, AUTH, salt=SALT, key=SENDER) == BODY
    assert decrypt(BODY, RECEIVER, AUTH) == PLAINTEXT


@given(st.binary(max_size=300))
def test_round_trip(message: bytes) -> None:
    assert decrypt(encrypt(message, RECEIVER.public, AUTH), RECEIVER, AUTH) == message


def test_every_message_has_its_own_key_and_salt() -> None:
    one, two = (encrypt(b"message", RECEIVER.public, AUTH) for _ in range(2))
    assert one[:16] != two[:16]
    assert one[21:86] != two[21:86]


def test_sizes() -> None:
    body = encrypt(bytes(MAX_MESSAGE), RECEIVER.public, AUTH)
    assert len(body) == MAX_BODY
    assert decrypt(body, RECEIVER, AUTH) == bytes(MAX_MESSAGE)
    with pytest.raises(CryptoError):
        encrypt(bytes(MAX_MESSAGE + 1), RECEIVER.public, AUTH)


def test_for_somebody_else() -> None:
    with pytest.raises(CryptoError):
        decrypt(BODY, SENDER, AUTH)
    with pytest.raises(CryptoError):
        decrypt(BODY, RECEIVER, bytes(16))
    with pytest.raises(CryptoError):
        decrypt(BODY[:-1], RECEIVER, AUTH)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        BODY[:86],
        BODY[:102],
        BODY[:20] + b"\x40" + BODY[21:],
        BODY[:16] + (40).to_bytes(4) + BODY[20:],
        BODY[:21] + bytes(65) + BODY[86:],
    ],
)
def test_malformed(body: bytes) -> None:
    with pytest.raises(CryptoError):
        decrypt(body, RECEIVER, AUTH)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"text\x02", b"text"),
        (b"text\x02\0\0\0", b"text"),
        (b"\x02\x02", b"\x02"),
        (b"text\x01", None),
        (b"text\x02x", None),
        (b"\0\0", None),
    ],
)
def test_padding(record: bytes, message: bytes | None) -> None:
    shared = SENDER.agree(RECEIVER.public)
    info = b"WebPush: info\0" + RECEIVER.public + SENDER.public
    material = HKDF(SHA256(), 32, AUTH, info).derive(shared)
    key = HKDF(SHA256(), 16, SALT, b"Content-Encoding: aes128gcm\0").derive(material)
    nonce = HKDF(SHA256(), 12, SALT, b"Content-Encoding: nonce\0").derive(material)
    body = BODY[:86] + AESGCM(key).encrypt(nonce, record, None)
    if message is None:
        with pytest.raises(CryptoError):
            decrypt(body, RECEIVER, AUTH)
    else:
        assert decrypt(body, RECEIVER, AUTH) == message
