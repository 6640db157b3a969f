"""Link data: the sender ID that a client derives; the codecs are tested with their table."""

import hashlib

from heliograph.wire.smp.links import SENDER_ID_SIZE, sender_id_of


def test_sender_id_is_the_beginning_of_a_hash() -> None:
    corr_id = bytes(range(24))
    sender_id = sender_id_of(corr_id)
    assert len(sender_id) == SENDER_ID_SIZE
    assert hashlib.sha3_384(corr_id).digest().startswith(sender_id)
    assert sender_id_of(corr_id[:-1]) != sender_id
