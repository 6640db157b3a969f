"""The key that a messaging and a notification router share to compare subscriptions.

Both hash the ID of a notifier with it, so that the pipeline can join what each believes and knows
no ID. The key in use is derived for one messaging router and one day: hashes of two routers, or
of two days, cannot be linked.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.runtime.errors import IdentityError
from heliograph.runtime.files import write_file

__all__ = ["DAY", "PairKey", "make_pair_secret", "pair_secret"]

DAY = 86_400
_SIZE = 32
_HASH_SIZE = 16


@dataclass(frozen=True, slots=True)
class PairKey:
    """The key for one messaging router, known by its fingerprint, and one day since the epoch.

    `place` names the router and the day to anyone who has the secret.
    """

    place: str
    _key: bytes = field(repr=False)

    @classmethod
    def derive(cls, secret: bytes, fingerprint: bytes, day: int) -> "PairKey":
        key = _hash(secret, b"helio-pair-key", b"%d:" % day + fingerprint, _SIZE)
        return cls(_hash(key, b"helio-place", b"").hex(), key)

    def notifier(self, notifier_id: bytes) -> str:
        return _hash(self._key, b"helio-notifier", notifier_id).hex()

    def service(self, service_id: bytes | None) -> str | None:
        return None if service_id is None else _hash(self._key, b"helio-service", service_id).hex()


def make_pair_secret(file: Path) -> None:
    """Make the file that both routers of a pair must have."""
    write_file(file, f"{secrets.token_hex(_SIZE)}\n".encode(), 0o600)


def pair_secret(file: Path) -> bytes:
    """Return the secret in a file. Raises `IdentityError`."""
    try:
        text = file.read_bytes().decode(errors="replace").strip()
    except OSError as exc:
        raise IdentityError(
            f"{file}: {exc.strerror}: make it once with `openssl rand -hex {_SIZE}`, and copy it to"
            " the other router"
        ) from exc
    if re.fullmatch(rf"[0-9a-f]{{{_SIZE * 2}}}", text) is None:
        raise IdentityError(f"{file}: must be {_SIZE * 2} hexadecimal digits")
    return bytes.fromhex(text)


def _hash(key: bytes, person: bytes, data: bytes, size: int = _HASH_SIZE) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=size, person=person).digest()
