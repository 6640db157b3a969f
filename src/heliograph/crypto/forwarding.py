"""Boxes of private routing: sender to destination inside, proxy to destination outside.

The inner box hides queue and content from the proxy, and is padded so that all commands look alike.
The outer one makes the bytes of the two connections differ. An answer uses the key of its command,
and the nonce in reverse. All keys are those of `heliograph.crypto.keys.box_key`.
"""

from heliograph.crypto.boxes import box_with, nonce_from, open_box_with
from heliograph.crypto.errors import CryptoError
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import pad, unpad
from heliograph.wire.smp.forwarding import (
    FORWARDED_SIZE,
    ForwardedResponse,
    ForwardedTransmission,
    decode_forwarded,
    decode_forwarded_response,
    encode_forwarded,
    encode_forwarded_response,
)


def seal_command(key: bytes, corr_id: bytes, content: bytes) -> bytes:
    """Encrypt the block content of a command, for PFWD."""
    return box_with(key, nonce_from(corr_id), _pad(content))


def open_command(key: bytes, corr_id: bytes, boxed: bytes) -> bytes:
    return _unpad(open_box_with(key, nonce_from(corr_id), boxed))


def seal_answer(key: bytes, corr_id: bytes, content: bytes) -> bytes:
    """Encrypt the block content of an answer, for PRES."""
    return box_with(key, _reversed(corr_id), _pad(content))


def open_answer(key: bytes, corr_id: bytes, boxed: bytes) -> bytes:
    return _unpad(open_box_with(key, _reversed(corr_id), boxed))


def seal_forwarded(key: bytes, corr_id: bytes, forwarded: ForwardedTransmission) -> bytes:
    """Encrypt the content that a proxy forwards, for RFWD with this `corr_id`."""
    return box_with(key, nonce_from(corr_id), encode_forwarded(forwarded))


def open_forwarded(key: bytes, corr_id: bytes, boxed: bytes) -> ForwardedTransmission:
    """Decrypt the content of RFWD. Raises `CryptoError`, or `WireError` if it is malformed."""
    return decode_forwarded(open_box_with(key, nonce_from(corr_id), boxed))


def seal_response(key: bytes, corr_id: bytes, forwarded: ForwardedResponse) -> bytes:
    """Encrypt the answer to RFWD with this `corr_id`, for RRES."""
    return box_with(key, _reversed(corr_id), encode_forwarded_response(forwarded))


def open_response(key: bytes, corr_id: bytes, boxed: bytes) -> ForwardedResponse:
    """Decrypt the content of RRES. Raises `CryptoError`, or `WireError` if it is malformed."""
    return decode_forwarded_response(open_box_with(key, _reversed(corr_id), boxed))


def _reversed(corr_id: bytes) -> bytes:
    return nonce_from(corr_id)[::-1]


def _pad(content: bytes) -> bytes:
    try:
        return pad(content, FORWARDED_SIZE)
    except WireError:
        raise CryptoError(f"{len(content)} bytes in a forwarded command or answer") from None


def _unpad(padded: bytes) -> bytes:
    try:
        return unpad(padded)
    except WireError:
        raise CryptoError("the padding of a forwarded command or answer is malformed") from None
