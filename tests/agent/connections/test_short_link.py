"""Short links: the reference's vectors, what is sealed opens, and what was changed does not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.connections.invitation import Invitation
from heliograph.agent.connections.short_link import (
    ShortLink,
    _box_key,
    open_fixed,
    open_link,
    open_user,
    seal_link,
)
from heliograph.agent.errors import BadInvitation
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import generate_key_pair
from heliograph.wire.addresses import decode_address
from heliograph.wire.keys import Algorithm

VECTORS = Path(__file__).parent / "short-links.jsonl"
ADDRESS = decode_address("smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com:5223")
INVITATION = Invitation(
    ADDRESS, b"s" * 24, generate_key_pair(Algorithm.X25519).public, sender_can_secure=True
)
ROOT = generate_key_pair(Algorithm.ED25519)
DATA = seal_link(INVITATION, ROOT, b"hello")
LINK = ShortLink(ADDRESS, b"l" * 24, DATA.link_key)


def vectors(kind: str, mode: str = "invitation") -> list[dict[str, Any]]:
    found = map(json.loads, VECTORS.read_text().splitlines())
    return [item for item in found if item["kind"] == kind and item.get("mode", mode) == mode]


def test_keys_of_the_reference() -> None:
    found = vectors("short_link_kdf")
    assert found
    for item in found:
        assert _box_key(bytes.fromhex(item["linkKey"])).hex() == item["sbKey"]


def test_data_of_the_reference() -> None:
    [item] = vectors("short_link_data")
    link_key = bytes.fromhex(item["linkKey"])
    root, request = open_fixed(link_key, bytes.fromhex(item["encFixedData"]))
    assert root.hex() == item["rootPublic_spki"]
    assert request.hex() == item["connReq_smp"]
    user = open_user(link_key, root, bytes.fromhex(item["encUserData"]))
    assert user == b"some user data"


def test_texts_of_the_reference() -> None:
    [item] = [item for item in vectors("short_link_uri") if "/i#" in item["uri"]]
    link = ShortLink.parse(item["uri"])
    assert str(link) == item["reencoded"]
    assert (link.link_id, len(link.link_key)) == (b"e" * 24, 32)


def test_what_is_sealed_opens() -> None:
    assert (len(DATA.fixed), len(DATA.user)) == (2048, 13824)
    assert open_link(LINK, b"s" * 24, DATA.fixed, DATA.user) == INVITATION
    assert open_user(DATA.link_key, ROOT.public, DATA.user) == b"hello"
    with pytest.raises(ValueError, match="user data"):
        seal_link(INVITATION, ROOT, bytes(255))


@pytest.mark.parametrize("part", ["fixed", "user"])
@given(place=st.integers(0, 2047), bit=st.integers(0, 7))
def test_what_was_changed_does_not_open(part: str, place: int, bit: int) -> None:
    changed = bytearray(getattr(DATA, part))
    changed[place] ^= 1 << bit
    parts = {"fixed": DATA.fixed, "user": DATA.user, part: bytes(changed)}
    with pytest.raises(BadInvitation):
        open_link(LINK, b"s" * 24, **parts)


def test_data_of_another_link() -> None:
    other = seal_link(INVITATION, generate_key_pair(Algorithm.ED25519))
    for fixed, user in ((other.fixed, DATA.user), (DATA.fixed, other.user), (b"", b"")):
        with pytest.raises(BadInvitation):
            open_link(LINK, b"s" * 24, fixed, user)
    with pytest.raises(BadInvitation, match="another queue"):
        open_link(LINK, b"t" * 24, DATA.fixed, DATA.user)
    with pytest.raises(CryptoError, match="signature"):
        open_user(DATA.link_key, generate_key_pair(Algorithm.ED25519).public, DATA.user)


@pytest.mark.parametrize("port", ["", "5223"])
def test_round_trip_of_texts(port: str) -> None:
    hosts = (*ADDRESS.hosts, *decode_address(str(ADDRESS).replace("smp.", "two.")).hosts)
    link = ShortLink(replace(ADDRESS, hosts=hosts, port=port), b"l" * 24, b"k" * 32)
    assert ShortLink.parse(f" {link}\n") == link
    assert ShortLink.is_text(str(link))
    first, second = (host.text for host in hosts)
    simplex = (
        str(link)
        .replace(f"https://{first}", "simplex:")
        .replace(f"h={second}", f"h={first},{second}")
    )
    assert ShortLink.parse(simplex) == link


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "https://smp.example.com/a#4AkRDmhf64tdRlN406g8lJRg5OCmhD6ynIhi6glOcCM",
            "cannot be joined",
        ),
        (str(LINK).partition("?")[0], "without its router"),
        (str(LINK).replace("https://smp.example.com", "simplex:"), "without its router"),
        (str(LINK).replace("p=5223", "p=99999"), "damaged"),
        (str(LINK).replace("c=LcJU", "c=Lc"), "damaged"),
        (str(LINK).replace("/i#", "/i#AA/AA?x="), "a wrong length"),
    ],
)
def test_bad_texts(text: str, why: str) -> None:
    assert ShortLink.is_text(text)
    with pytest.raises(BadInvitation, match=why):
        ShortLink.parse(text)


def test_full_links_are_no_short_ones() -> None:
    assert not ShortLink.is_text(str(INVITATION))
    assert not ShortLink.is_text("https://example.com")


def test_secrets_are_not_shown() -> None:
    assert "kkkk" not in repr(ShortLink(ADDRESS, b"l" * 24, b"k" * 32))
    assert repr(DATA) == "SealedLink()"
