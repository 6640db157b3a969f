"""The hash by which a service and a router compare their sets of associated queues."""

import hashlib
from collections.abc import Iterable

IDS_HASH_SIZE = 16
NO_IDS = bytes(IDS_HASH_SIZE)


def id_hash(entity_id: bytes) -> bytes:
    return hashlib.md5(entity_id, usedforsecurity=False).digest()


def toggle(ids_hash: bytes, entity_id: bytes) -> bytes:
    """Add an ID to the hash, or remove it: XOR is its own inverse."""
    return xor(ids_hash, id_hash(entity_id))


def xor(left: bytes, right: bytes) -> bytes:
    """Return the XOR of two hashes; an empty one changes nothing."""
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(IDS_HASH_SIZE)


def ids_hash(entity_ids: Iterable[bytes]) -> bytes:
    total = 0
    for entity_id in entity_ids:
        total ^= int.from_bytes(id_hash(entity_id))
    return total.to_bytes(IDS_HASH_SIZE)
