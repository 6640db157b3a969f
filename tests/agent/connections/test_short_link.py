"""Short links: the reference's vectors, what is sealed opens, and what was changed does not."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.connections.invitation import Invitation
from heliograph.agent.connections.link_data import (
    ContactData,
    Owner,
    contact_data_codec,
    open_contact,
    open_fixed,
    open_link,
    open_user,
    seal_contact,
    seal_contact_data,
    seal_link,
)
from heliograph.agent.connections.short_link import (
    LinkKind,
    ShortLink,
    contact_keys,
    invitation_key,
    short_link_codec,
    shortened,
)
from heliograph.agent.errors import BadInvitation
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, generate_key_pair
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.primitives import Reader, encode_short
from tests.keys import fixed_key_pair

VECTORS = Path(__file__).parent / "short-links.jsonl"
ADDRESS = decode_address("smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com:5223")
INVITATION = Invitation(
    ADDRESS, b"s" * 24, fixed_key_pair(Algorithm.X25519, "queue").public, sender_can_secure=True
)
ROOT = fixed_key_pair(Algorithm.ED25519, "root")
DATA = seal_link(INVITATION, ROOT, b"hello")
LINK = ShortLink(ADDRESS, b"l" * 24, DATA.link_key)


def vectors(kind: str, mode: str = "invitation") -> list[dict[str, Any]]:
    found = map(json.loads, VECTORS.read_text().splitlines())
    return [item for item in found if item["kind"] == kind and item.get("mode", mode) == mode]


def test_keys_of_the_reference() -> None:
    for item in vectors("short_link_kdf"):
        assert invitation_key(bytes.fromhex(item["linkKey"])).hex() == item["sbKey"]
    found = vectors("short_link_kdf", "contact")
    assert found
    for item in found:
        link_id, key = contact_keys(bytes.fromhex(item["linkKey"]))
        assert (link_id.hex(), key.hex()) == (item["linkId"], item["sbKey"])


def test_data_of_the_reference() -> None:
    [item] = vectors("short_link_data")
    link = ShortLink(ADDRESS, b"l", bytes.fromhex(item["linkKey"]))
    root, request = open_fixed(link, bytes.fromhex(item["encFixedData"]))
    assert root.hex() == item["rootPublic_spki"]
    assert request.hex() == item["connReq_smp"]
    assert open_user(link, root, bytes.fromhex(item["encUserData"])) == b"some user data"


def test_contact_data_of_the_reference() -> None:
    found = vectors("short_link_data", "contact")
    assert len(found) == 3
    for item in found:
        link = ShortLink.contact(ADDRESS, bytes.fromhex(item["linkKey"]))
        assert link.link_id.hex() == item["linkId"]
        parts = bytes.fromhex(item["encFixedData"]), bytes.fromhex(item["encUserData"])
        contact = open_contact(link, *parts)
        assert contact.root.hex() == item["rootPublic_spki"]
        entity = bytes.fromhex(item["linkEntityId"] or "")
        expected = bytes.fromhex(item["connReq_smp"]) + (encode_short(entity) if entity else b"")
        assert contact.request == expected
        signed = bytes.fromhex(item["signedUserData"])[65:]
        versions = bytes.fromhex(item["agentVRange"])
        assert b"C" + versions + contact_data_codec.encode(contact.data) == signed
        owners = 2 if "two owners" in item["name"] else 0
        assert (len(contact.data.owners), len(contact.data.relays)) == (owners, owners // 2)


def test_texts_of_the_reference() -> None:
    found = [item for item in vectors("short_link_uri") if "error" not in item]
    assert {item["uri"].partition("#")[0][-1] for item in found} == set("iacgr")
    for item in found:
        [link] = [short_link_codec.decode(Reader(bytes.fromhex(item["hex"])))]
        assert short_link_codec.encode(link).hex() == item["hex"]
        text = link.app_text if item["uri"].startswith("simplex:") else str(link)
        assert text == item["reencoded"]
        known = [replace(link.address, fingerprint=ADDRESS.fingerprint)]
        parsed = ShortLink.parse(item["uri"], known)
        assert (parsed.kind, parsed.link_key) == (link.kind, link.link_key)
        assert parsed.link_id == link.link_id
        if link.address.fingerprint:
            assert parsed == link
    [bad] = [item for item in vectors("short_link_uri") if "error" in item]
    with pytest.raises(BadInvitation, match="without its router"):
        ShortLink.parse(bad["uri"], [ADDRESS])


def test_what_is_sealed_opens() -> None:
    assert (len(DATA.fixed), len(DATA.user)) == (2048, 13824)
    assert open_link(LINK, b"s" * 24, DATA.fixed, DATA.user) == INVITATION
    assert open_user(LINK, ROOT.public, DATA.user) == b"hello"
    for size in (254, 255, 256, 13_000):
        sealed = seal_link(INVITATION, ROOT, b"u" * size)
        link = replace(LINK, link_key=sealed.link_key)
        assert open_user(link, ROOT.public, sealed.user) == b"u" * size
    with pytest.raises(ValueError, match="too much"):
        seal_link(INVITATION, ROOT, bytes(13_784))


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
        open_user(LINK, generate_key_pair(Algorithm.ED25519).public, DATA.user)


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
            "an unknown router",
        ),
        (str(LINK).partition("?")[0], "an unknown router"),
        (str(LINK).replace("/i#", "/a#"), "not a short link"),
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


def test_links_of_known_routers_name_only_the_host() -> None:
    """As the reference's `shortenShortLink` and `restoreShortLink`."""
    other = decode_address(str(ADDRESS).replace("smp.", "other."))
    for link in (LINK, ShortLink.contact(ADDRESS, b"k" * 32, LinkKind.GROUP)):
        short = shortened(link, [other, ADDRESS])
        assert str(short) == str(link).partition("?")[0]
        assert shortened(link, [other]) == link
        assert ShortLink.parse(str(short), [other, ADDRESS]) == link
        with pytest.raises(BadInvitation, match="unknown router"):
            ShortLink.parse(str(short), [other])


@pytest.mark.parametrize("kind", list(LinkKind)[1:])
def test_contact_texts(kind: LinkKind) -> None:
    link = ShortLink.contact(ADDRESS, b"k" * 32, kind)
    for text in (str(link), link.app_text, str(link).replace("#", "/#")):
        assert ShortLink.is_text(text)
        assert ShortLink.parse(text) == link
    assert short_link_codec.decode(Reader(short_link_codec.encode(link))) == link
    with pytest.raises(WireError):
        short_link_codec.decode(Reader(b"CX" + short_link_codec.encode(link)[2:]))


def owner(name: str, by: KeyPair) -> tuple[KeyPair, Owner]:
    keys = generate_key_pair(Algorithm.ED25519)
    return keys, Owner.authorized(name.encode(), keys.public, by.private)


ONE, OWNER_ONE = owner("one", ROOT)
TWO, OWNER_TWO = owner("two", ONE)
CONTACT = seal_contact(b"request", ROOT, ContactData(b"hello"))
CONTACT_LINK = ShortLink.contact(ADDRESS, CONTACT.link_key)


@pytest.mark.parametrize("signer", [ROOT, ONE, TWO])
def test_owners_change_the_data(signer: KeyPair) -> None:
    relay = ShortLink.contact(ADDRESS, b"r" * 32, LinkKind.RELAY)
    data = ContactData(b"u" * 300, False, (OWNER_ONE, OWNER_TWO), (relay,))
    user = seal_contact_data(CONTACT.link_key, signer, data)
    assert (len(CONTACT.fixed), len(user)) == (2048, 13824)
    contact = open_contact(CONTACT_LINK, CONTACT.fixed, user)
    assert (contact.root, contact.request, contact.data) == (ROOT.public, b"request", data)


@pytest.mark.parametrize(
    ("signer", "owners", "why"),
    [
        (ONE, (), "signature of the user data"),
        (TWO, (OWNER_ONE,), "signature of the user data"),
        (ROOT, (OWNER_TWO,), "not authorized"),
        (ROOT, (OWNER_TWO, OWNER_ONE), "not authorized"),
        (ROOT, (OWNER_ONE, OWNER_ONE), "twice"),
        (ROOT, (OWNER_ONE, replace(OWNER_TWO, owner_id=b"one")), "twice"),
        (ROOT, (Owner.authorized(b"root", ROOT.public, ROOT.private),), "twice"),
        (ROOT, (replace(OWNER_ONE, key=INVITATION.dh_key),), "Ed25519"),
    ],
)
def test_strangers_do_not(signer: KeyPair, owners: tuple[Owner, ...], why: str) -> None:
    user = seal_contact_data(CONTACT.link_key, signer, ContactData(owners=owners))
    with pytest.raises(BadInvitation, match=why):
        open_contact(CONTACT_LINK, CONTACT.fixed, user)


def test_data_of_an_invitation_is_no_contact() -> None:
    link = replace(LINK, kind=LinkKind.CONTACT)
    with pytest.raises(BadInvitation):
        open_contact(link, DATA.fixed, DATA.user)
    other = seal_contact(b"another request", ROOT, ContactData())
    with pytest.raises(BadInvitation):
        open_contact(CONTACT_LINK, other.fixed, CONTACT.user)


def test_full_links_are_no_short_ones() -> None:
    assert not ShortLink.is_text(str(INVITATION))
    assert not ShortLink.is_text("https://example.com")


def test_secrets_are_not_shown() -> None:
    assert "kkkk" not in repr(ShortLink(ADDRESS, b"l" * 24, b"k" * 32))
    assert repr(DATA) == "SealedLink()"


LINKS = st.builds(
    ShortLink.contact,
    st.just(ADDRESS),
    st.binary(min_size=32, max_size=32),
    st.sampled_from(list(LinkKind)[1:]),
)
KEYS = st.sampled_from([ROOT.public, ONE.public, TWO.public])
OWNERS = st.builds(Owner, st.binary(max_size=50), KEYS, st.binary(min_size=64, max_size=64))


@given(
    data=st.builds(
        ContactData,
        st.binary(max_size=400),
        st.booleans(),
        st.lists(OWNERS, max_size=4).map(tuple),
        st.lists(LINKS, max_size=4).map(tuple),
    ),
    later=st.binary(max_size=9),
)
def test_contact_data_both_ways(data: ContactData, later: bytes) -> None:
    """What later versions append is ignored."""
    encoded = contact_data_codec.encode(data)
    assert contact_data_codec.decode(Reader(encoded + later)) == data


@given(data=st.binary(max_size=300))
def test_any_bytes_are_contact_data_or_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):
        contact_data_codec.decode(Reader(data))


@given(link=LINKS | st.just(LINK))
def test_texts_both_ways(link: ShortLink) -> None:
    assert ShortLink.parse(str(link)) == ShortLink.parse(link.app_text) == link
    assert short_link_codec.decode(Reader(short_link_codec.encode(link))) == link


@given(text=st.text(max_size=80) | st.from_regex(r"simplex:/[iacgr]#.{0,80}"))
def test_any_text_is_a_link_or_refused(text: str) -> None:
    with contextlib.suppress(BadInvitation):
        ShortLink.parse(text, [ADDRESS])
