"""Invitations as text and as bytes."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.connections.invitation import Invitation, invitation_codec
from heliograph.agent.errors import BadInvitation
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import Reader
from tests.agent.support import has_text
from tests.strategies import smp_servers, x25519_keys

# Not every address that fits in bytes has a text of its own.
ADDRESSES = smp_servers.filter(has_text)
INVITATIONS = st.builds(
    Invitation, ADDRESSES, st.binary(min_size=1, max_size=32), x25519_keys, st.booleans()
)
# As an agent of the SimpleX network writes it.
TEXT = (
    "smp://1234123412341234123412341234123412341234120=@smp.simplex.im:5223/3456-w==#/?v=1-4"
    "&dh=MCowBQYDK2VuAyEAjiswwI3O_NlS8Fk3HJUW870EY2bAwmttMBsvRB9eV3o%3D&q=m"
)


AN_ADDRESS = decode_address("smp://1234123412341234123412341234123412341234120=@smp.simplex.im")


@given(INVITATIONS)
def test_text_round_trip(invitation: Invitation) -> None:
    assert Invitation.parse(str(invitation)) == invitation
    assert Invitation.parse(f"  {invitation}\n") == invitation


def test_an_address_that_no_text_stands_for_is_refused() -> None:
    strange = replace(Invitation.parse(TEXT), address=replace(AN_ADDRESS, port="x:y"))
    with pytest.raises(WireError, match="cannot be stored"):
        invitation_codec.decode(Reader(invitation_codec.encode(strange)))


@given(INVITATIONS)
def test_bytes_round_trip(invitation: Invitation) -> None:
    assert invitation_codec.decode(Reader(invitation_codec.encode(invitation))) == invitation


@given(st.text())
def test_any_text_is_refused_properly(text: str) -> None:
    with pytest.raises(BadInvitation):
        Invitation.parse(text)


@given(st.data())
def test_damaged_text_is_refused_properly(data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(TEXT) - 1))
    damaged = TEXT[:position] + data.draw(st.text(max_size=2)) + TEXT[position + 1 :]
    with contextlib.suppress(BadInvitation):
        Invitation.parse(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_properly(data: bytes) -> None:
    with contextlib.suppress(WireError):
        invitation_codec.decode(Reader(data))


def test_that_of_another_agent() -> None:
    invitation = Invitation.parse(TEXT)
    assert invitation.sender_can_secure
    assert (
        str(invitation.address)
        == "smp://1234123412341234123412341234123412341234120=@smp.simplex.im:5223"
    )


@pytest.mark.parametrize(
    ("text", "can_secure"),
    [
        (TEXT.replace("&q=m", ""), False),
        (TEXT.replace("&q=m", "&k=s"), True),
        (TEXT.replace("&q=m", "&q=c"), False),
        (TEXT.replace("&q=m", "&q=m&new=field"), True),
        (TEXT.replace("v=1-4", "v=4"), True),
        (TEXT.replace("v=1-4", "v=2-99"), True),
    ],
)
def test_who_secures(text: str, can_secure: bool) -> None:
    assert Invitation.parse(text).sender_can_secure is can_secure


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://example.com", "not an invitation"),
        (TEXT.replace("v=1-4", "v=5-9"), "upgrade"),
        (TEXT.replace("v=1-4&", ""), "no version"),
        (TEXT.replace("MCow", "MCox"), "not an X25519 key"),
        (TEXT.replace("smp://", "ntf://"), "not an invitation"),
        (TEXT.replace("smp.simplex.im", "a b"), "damaged"),
    ],
)
def test_why_it_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadInvitation, match=reason):
        Invitation.parse(text)


def test_nothing_of_the_queue_shows() -> None:
    assert "3456" not in repr(Invitation.parse(TEXT))
