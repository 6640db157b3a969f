"""Messages between agents, and their boxes."""

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.connections.invitation import Invitation
from heliograph.agent.messages.envelope import (
    MAX_BODY,
    AddQueue,
    Body,
    Confirmation,
    Content,
    EndQueue,
    Hello,
    MessageKind,
    decode_content,
    encode_content,
    kind_of,
    seal,
    unseal,
)
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp import max_message_length
from tests.agent.support import has_text
from tests.keys import fixed_key_pair
from tests.strategies import auth_keys, i64s, shorts, smp_servers, x25519_keys

INVITATIONS = st.builds(
    Invitation, smp_servers.filter(has_text), shorts, x25519_keys, st.booleans()
)
CONTENTS: st.SearchStrategy[Content] = st.one_of(
    st.builds(Confirmation, st.none() | INVITATIONS, st.none() | shorts),
    st.builds(Hello, shorts),
    st.builds(Body, st.binary(max_size=300)),
    st.builds(AddQueue, INVITATIONS),
    st.just(EndQueue()),
)

RECIPIENT = fixed_key_pair(Algorithm.X25519, "recipient")
SENDER = fixed_key_pair(Algorithm.X25519, "sender")
SECRET = dh(RECIPIENT.public, SENDER.private)


@given(CONTENTS)
def test_content_round_trip(content: Content) -> None:
    assert decode_content(kind_of(content), encode_content(content)) == content


@given(CONTENTS, i64s, st.none() | auth_keys, st.booleans())
def test_box_round_trip(
    content: Content, number: int, sender_key: bytes | None, is_first: bool
) -> None:
    public = SENDER.public if is_first else None
    data = seal(
        SECRET,
        kind_of(content),
        number,
        encode_content(content),
        public=public,
        sender_key=sender_key,
    )
    opened = unseal(data, RECIPIENT.private, None if is_first else SECRET)
    assert opened == (SECRET, sender_key, number, content)


def test_the_longest_fits_in_every_version() -> None:
    data = seal(SECRET, MessageKind.MESSAGE, 2**62, bytes(MAX_BODY))
    assert unseal(data, RECIPIENT.private, SECRET).content == Body(bytes(MAX_BODY))
    assert all(len(data) <= max_message_length(version) for version in range(6, 20))
    with pytest.raises(CryptoError):
        seal(SECRET, MessageKind.MESSAGE, 1, bytes(MAX_BODY + 1))


@given(st.binary(max_size=1000), st.binary(max_size=1000))
def test_all_messages_are_of_one_size(one: bytes, two: bytes) -> None:
    assert len(seal(SECRET, MessageKind.MESSAGE, 1, one)) == len(
        seal(SECRET, MessageKind.HELLO, 2, two)
    )


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_properly(data: bytes) -> None:
    with pytest.raises((WireError, CryptoError)):
        unseal(data, RECIPIENT.private, None)


@given(st.integers(0, 200), st.integers(1, 255))
def test_what_was_changed_does_not_open(position: int, change: int) -> None:
    data = bytearray(seal(SECRET, MessageKind.MESSAGE, 1, b"hello", public=SENDER.public))
    if position in (0, 1):
        return  # the version, which a later one may use
    data[position] ^= change
    with pytest.raises((WireError, CryptoError)):
        unseal(bytes(data), RECIPIENT.private, None)


def test_the_first_message_needs_a_key() -> None:
    with pytest.raises(CryptoError, match="no key"):
        unseal(seal(SECRET, MessageKind.MESSAGE, 1, b""), RECIPIENT.private, None)


def test_a_known_secret_wins_over_a_key() -> None:
    stranger = generate_key_pair(Algorithm.X25519)
    secret = dh(RECIPIENT.public, stranger.private)
    data = seal(secret, MessageKind.MESSAGE, 1, b"", public=stranger.public)
    with pytest.raises(CryptoError):
        unseal(data, RECIPIENT.private, SECRET)


def test_bytes_of_a_later_version_are_ignored() -> None:
    content = Hello(b"id")
    data = seal(SECRET, MessageKind.HELLO, 1, encode_content(content) + b"more")
    assert unseal(data, RECIPIENT.private, SECRET).content == content


def test_an_unknown_kind_is_refused() -> None:
    class Later:
        value = b"Z"

    data = seal(SECRET, Later, 1, b"")  # type: ignore[arg-type]
    with pytest.raises(WireError, match="unknown kind"):
        unseal(data, RECIPIENT.private, SECRET)
