"""Confirmation of notifications: a PING whose correlation ID carries how many are durable.

SMP has no acknowledgement for NMSG. A subscriber of ours sends this PING, first with a count of 0,
before it subscribes. A messaging router of ours sends a PONG without correlation ID before the
answer to that one, and keeps each NMSG until a PING on the same connection counts it. To other
routers it is an ordinary PING.
"""

MARK = b"heliograph/nmsg/"
MAX_COUNT = 2**64 - 1


def encode_confirmation(count: int) -> bytes:
    """Return the correlation ID that confirms the first `count` NMSG of a connection."""
    return MARK + count.to_bytes(8)


def decode_confirmation(corr_id: bytes) -> int | None:
    """Return how many NMSG a PING with this correlation ID confirms; None if it is ordinary."""
    if len(corr_id) != len(MARK) + 8 or not corr_id.startswith(MARK):
        return None
    return int.from_bytes(corr_id[len(MARK) :])
