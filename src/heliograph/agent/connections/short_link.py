"""The text of short links, which lead to data stored, encrypted, at a messaging router.

    https://<host>/i#<link ID>/<link key>?h=<more hosts>&p=<port>&c=<fingerprint>
    simplex:/i#<link ID>/<link key>?h=<hosts>&p=<port>&c=<fingerprint>
    https://<host>/a#<link key>?...       a contact address; c a channel, g a group, r a relay

The link of a contact address has no link ID, because it follows from the link key. A link to a
router that its reader knows may be without `p` and `c`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from urllib.parse import parse_qsl, quote

from heliograph.agent.errors import BadInvitation
from heliograph.crypto.chains import hkdf
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host, smp_server
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import Codec, Reader, b64decode, b64encode, encode_short

KEY_SIZE = 32
LINK_ID_SIZE = 24

_TEXT = re.compile(
    r"(?:https://(?P<host>[^/#?]+)|simplex:)/"
    r"(?:i/?#(?P<link_id>[\w-]+)/|(?P<kind>[acgrACGR])/?#)(?P<key>[\w-]+)/?(?:\?(?P<query>.*))?",
    re.ASCII,
)
_OTHER = re.compile(r"(?:https://[^/#?]+|simplex:)/(?:[iacgr]/?#|invitation|contact)")


class LinkKind(Enum):
    """What a link leads to, as the letter in its text."""

    INVITATION = "i"
    CONTACT = "a"
    CHANNEL = "c"
    GROUP = "g"
    RELAY = "r"


@dataclass(frozen=True, slots=True)
class ShortLink:
    """A short link. The fingerprint of `address` is empty while its router is not known."""

    address: ServerAddress
    link_id: bytes = field(repr=False)
    link_key: bytes = field(repr=False)
    kind: LinkKind = LinkKind.INVITATION

    @classmethod
    def contact(
        cls, address: ServerAddress, link_key: bytes, kind: LinkKind = LinkKind.CONTACT
    ) -> "ShortLink":
        return cls(address, contact_keys(link_key)[0], link_key, kind)

    @property
    def box_key(self) -> bytes:
        """The key of the data that the link leads to."""
        if self.kind is LinkKind.INVITATION:
            return invitation_key(self.link_key)
        return contact_keys(self.link_key)[1]

    def __str__(self) -> str:
        first, *others = (host.text for host in self.address.hosts)
        return self._text(f"https://{first}", others)

    @property
    def app_text(self) -> str:
        """The text that opens the app directly."""
        return self._text("simplex:", [host.text for host in self.address.hosts])

    def _text(self, authority: str, hosts: list[str]) -> str:
        query = [f"h={quote(','.join(hosts), safe='')}"] if hosts else []
        if self.address.port:
            query.append(f"p={self.address.port}")
        if self.address.fingerprint:
            query.append(f"c={_unpadded(self.address.fingerprint)}")
        key = _unpadded(self.link_key)
        if self.kind is LinkKind.INVITATION:
            key = f"{_unpadded(self.link_id)}/{key}"
        return f"{authority}/{self.kind.value}#{key}" + (f"?{'&'.join(query)}" if query else "")

    @staticmethod
    def is_text(text: str) -> bool:
        """Return whether a text is a short link of any kind, rather than a full link."""
        return bool(_OTHER.match(text.strip()))

    @classmethod
    def parse(cls, text: str, known: Iterable[ServerAddress] = ()) -> "ShortLink":
        """Parse the text of a short link, to one of the `known` routers if it names none.

        Raises `BadInvitation`.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise BadInvitation("not a short link: it has the form https://host/i#...")
        query = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
        hosts = [match["host"]] if match["host"] else []
        hosts += query["h"].split(",") if query.get("h") else []
        if not hosts:
            raise BadInvitation("a short link without its router: ask for one with `h=` in it")
        try:
            fingerprint = b64decode(query["c"]) if query.get("c") else b""
            address = ServerAddress(
                Scheme.SMP, tuple(map(decode_host, hosts)), query.get("p", ""), fingerprint
            )
            link_id = b64decode(match["link_id"]) if match["link_id"] else b""
            key = b64decode(match["key"])
            if len(fingerprint) not in (0, KEY_SIZE) or not address.effective_port:
                raise BadInvitation("a damaged short link: its router address is invalid")
        except WireError as exc:
            raise BadInvitation(f"a damaged short link: {exc}") from None
        if len(key) != KEY_SIZE or len(link_id) > 255:
            raise BadInvitation("a damaged short link: its key has a wrong length")
        address = _restored(address, known)
        if match["kind"]:
            return cls.contact(address, key, LinkKind(match["kind"].lower()))
        return cls(address, link_id, key)


def invitation_key(link_key: bytes) -> bytes:
    """Return the key of the data of an invitation."""
    return hkdf(b"", link_key, b"SimpleXInvLink", KEY_SIZE)


def contact_keys(link_key: bytes) -> tuple[bytes, bytes]:
    """Return the link ID of a contact address, and the key of its data."""
    derived = hkdf(b"", link_key, b"SimpleXContactLink", LINK_ID_SIZE + KEY_SIZE)
    return derived[:LINK_ID_SIZE], derived[LINK_ID_SIZE:]


def _restored(address: ServerAddress, known: Iterable[ServerAddress]) -> ServerAddress:
    """Return the known router that a link without fingerprint means. Raises `BadInvitation`."""
    if address.fingerprint:
        return address
    found = [router for router in known if address.hosts[0] in router.hosts]
    if not found:
        raise BadInvitation("a short link to an unknown router: ask for one with `c=` in it")
    return found[0].without_password()


def shortened(link: ShortLink, known: Iterable[ServerAddress]) -> ShortLink:
    """Return the link without what a reader who knows the router can restore."""
    if link.address not in {router.without_password() for router in known}:
        return link
    first = link.address.hosts[:1]
    return replace(link, address=replace(link.address, hosts=first, port="", fingerprint=b""))


def _encode(link: ShortLink) -> bytes:
    place, key = smp_server.encode(link.address), encode_short(link.link_key)
    if link.kind is LinkKind.INVITATION:
        return b"I" + place + encode_short(link.link_id) + key
    kind: str = link.kind.value
    return b"C" + kind.upper().encode() + place + key


def _decode(reader: Reader) -> ShortLink:
    mode = reader.take(1)
    if mode == b"I":
        return ShortLink(smp_server.decode(reader), reader.short(), reader.short())
    try:
        kind = LinkKind(reader.take(1).decode("ascii", "replace").lower())
    except ValueError:
        kind = LinkKind.INVITATION
    if mode != b"C" or kind is LinkKind.INVITATION:
        raise reader.fail("not a short link")
    return ShortLink.contact(smp_server.decode(reader), reader.short(), kind)


short_link_codec = Codec[ShortLink]("short link", _encode, _decode)


def _unpadded(data: bytes) -> str:
    return b64encode(data).rstrip("=")
