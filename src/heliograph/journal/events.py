"""The event of the journal, and the IDs that let the path of a notification be joined."""

import hashlib
from dataclasses import dataclass, field

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` says what happened; `notification` is the hash that all parts compute alike."""

    kind: str
    at: float
    notification: str | None = None
    detail: dict[str, str | int | float | bool] = field(default_factory=dict)


def notification_id(nonce: bytes) -> str:
    """The same at the SMP router, the NTF router and the device.

    A nonce is 24 random bytes that only these three ever see, so its hash links nothing else.
    """
    return hashlib.blake2b(nonce, digest_size=16, person=b"helio-ntf").hexdigest()
