"""The hash by which a service and a router compare which queues they hold associated."""

import hashlib
from collections.abc import Iterable

IDS_HASH_SIZE = 16
NO_IDS = bytes(IDS_HASH_SIZE)


def id_hash(entity_id: bytes) -> bytes:
    return hashlib.md5(entity_id, usedforsecurity=False).digest()


def toggle(ids_hash: bytes, entity_id: bytes) -> bytes:
    """The hash with one ID more, or one less: XOR is its own inverse."""
    return (int.from_bytes(ids_hash) ^ int.from_bytes(id_hash(entity_id))).to_bytes(IDS_HASH_SIZE)


def ids_hash(entity_ids: Iterable[bytes]) -> bytes:
    total = 0
    for entity_id in entity_ids:
        total ^= int.from_bytes(id_hash(entity_id))
    return total.to_bytes(IDS_HASH_SIZE)
