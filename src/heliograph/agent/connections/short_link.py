"""One-time short links: a text that leads to an invitation stored, encrypted, at its router.

    https://<host>/i#<link ID>/<link key>?p=<port>&c=<fingerprint>
    simplex:/i#<link ID>/<link key>?h=<hosts>&p=<port>&c=<fingerprint>

The link key is the hash of the fixed data, so that a router can neither read nor replace it. Both
parts of the data are signed by a root key, which is part of the fixed one.
"""

import hashlib
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote

from heliograph.agent.connections.invitation import Invitation, invitation_codec
from heliograph.agent.errors import BadInvitation
from heliograph.crypto.boxes import box_padded, open_box_padded, random_nonce
from heliograph.crypto.chains import hkdf
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, sign, verify
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm, public_key_algorithm
from heliograph.wire.primitives import (
    Reader,
    b64decode,
    b64encode,
    encode_short,
    u16,
)

AGENT_VERSIONS = (2, 7)
FIXED_SIZE, USER_SIZE = 2008, 13784
"""Padded sizes of the signed data, before encryption."""
NONCE_SIZE = 24
KEY_SIZE = 32
MAX_USER_DATA = 254

_INFO = b"SimpleXInvLink"
_TEXT = re.compile(
    r"(?:https://(?P<host>[^/#?]+)|simplex:)/i#(?P<link_id>[\w-]+)/(?P<key>[\w-]+)/?(?:\?(?P<query>.*))?",
    re.ASCII,
)
_OTHER = re.compile(r"(?:https://[^/#?]+|simplex:)/(?:[acgr]#|invitation|contact)")


@dataclass(frozen=True, slots=True)
class ShortLink:
    address: ServerAddress
    link_id: bytes = field(repr=False)
    link_key: bytes = field(repr=False)

    def __str__(self) -> str:
        first, *others = (host.text for host in self.address.hosts)
        query = [f"h={quote(','.join(others), safe='')}"] if others else []
        if self.address.port:
            query.append(f"p={self.address.port}")
        query.append(f"c={_unpadded(self.address.fingerprint)}")
        key = f"{_unpadded(self.link_id)}/{_unpadded(self.link_key)}"
        return f"https://{first}/i#{key}?{'&'.join(query)}"

    @staticmethod
    def is_text(text: str) -> bool:
        """Return whether a text is a short link of any kind, rather than a full link."""
        return bool(_TEXT.fullmatch(text.strip()) or _OTHER.match(text.strip()))

    @classmethod
    def parse(cls, text: str) -> "ShortLink":
        """Parse the text of a short link. Raises `BadInvitation`."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise BadInvitation(
                "not a one-time short link: it has the form https://host/i#...; links of contact"
                " addresses, groups and channels cannot be joined"
            )
        query = dict(parse_qsl(match["query"] or "", keep_blank_values=True))
        hosts = [match["host"]] if match["host"] else []
        hosts += query["h"].split(",") if query.get("h") else []
        if not hosts or not query.get("c"):
            raise BadInvitation("a short link without its router: ask for one with `c=` in it")
        port = query.get("p", "")
        try:
            address = ServerAddress(
                Scheme.SMP, tuple(map(decode_host, hosts)), port, b64decode(query["c"])
            )
            link_id, key = b64decode(match["link_id"]), b64decode(match["key"])
            if len(address.fingerprint) != KEY_SIZE or not address.effective_port:
                raise BadInvitation("a damaged short link: its router address is invalid")
        except WireError as exc:
            raise BadInvitation(f"a damaged short link: {exc}") from None
        if len(key) != KEY_SIZE or len(link_id) > 255:
            raise BadInvitation("a damaged short link: its key has a wrong length")
        return cls(address, link_id, key)


@dataclass(frozen=True, slots=True)
class SealedLink:
    """The encrypted data of a link, as routers store it, and the key that decrypts it."""

    link_key: bytes = field(repr=False)
    fixed: bytes = field(repr=False)
    user: bytes = field(repr=False)


def seal_link(invitation: Invitation, root: KeyPair, user_data: bytes = b"") -> SealedLink:
    """Encrypt an invitation for its link. `root` must be a fresh Ed25519 key pair."""
    if len(user_data) > MAX_USER_DATA:
        raise ValueError(f"{len(user_data)} bytes of user data, of at most {MAX_USER_DATA}")
    versions = b"".join(map(u16.encode, AGENT_VERSIONS))
    fixed = versions + encode_short(root.public) + invitation_codec.encode(invitation)
    user = b"I" + versions + encode_short(user_data)
    link_key = hashlib.sha3_256(fixed).digest()
    key = _box_key(link_key)
    return SealedLink(
        link_key,
        _seal(key, _signed(root, fixed), FIXED_SIZE),
        _seal(key, _signed(root, user), USER_SIZE),
    )


def open_link(link: ShortLink, sender_id: bytes, fixed: bytes, user: bytes) -> Invitation:
    """Decrypt and check the data of a link. Raises `BadInvitation`."""
    try:
        root, request = open_fixed(link.link_key, fixed)
        open_user(link.link_key, root, user)
        invitation = invitation_codec.decode(Reader(request))
    except (CryptoError, WireError) as exc:
        raise BadInvitation(f"the router's data does not belong to this link: {exc}") from None
    place = invitation.address.fingerprint, invitation.snd_id
    if place != (link.address.fingerprint, sender_id):
        raise BadInvitation("the router's data is of another queue than the link's")
    return invitation


def open_fixed(link_key: bytes, boxed: bytes) -> tuple[bytes, bytes]:
    """Return the root key and the connection request. Raises `CryptoError` or `WireError`."""
    signature, data = _open(link_key, boxed)
    if hashlib.sha3_256(data).digest() != link_key:
        raise CryptoError("its hash differs from the link key")
    reader = Reader(data)
    reader.u16()
    reader.u16()
    root = reader.short()
    if public_key_algorithm(root) is not Algorithm.ED25519 or not verify(root, signature, data):
        raise CryptoError("its signature does not fit")
    return root, reader.tail()


def open_user(link_key: bytes, root: bytes, boxed: bytes) -> bytes:
    """Return the user data of an invitation. Raises `CryptoError` or `WireError`."""
    signature, data = _open(link_key, boxed)
    reader = Reader(data)
    if reader.take(1) != b"I" or not verify(root, signature, data):
        raise CryptoError("its signature does not fit")
    reader.u16()
    reader.u16()
    return reader.short()


def _box_key(link_key: bytes) -> bytes:
    return hkdf(b"", link_key, _INFO, KEY_SIZE)


def _signed(root: KeyPair, data: bytes) -> bytes:
    return encode_short(sign(root.private, data)) + data


def _seal(key: bytes, data: bytes, size: int) -> bytes:
    nonce = random_nonce()
    return nonce + box_padded(key, nonce, data, size)


def _open(link_key: bytes, boxed: bytes) -> tuple[bytes, bytes]:
    """Return the signature and the signed bytes."""
    reader = Reader(open_box_padded(_box_key(link_key), boxed[:NONCE_SIZE], boxed[NONCE_SIZE:]))
    return reader.short(), reader.tail()


def _unpadded(data: bytes) -> str:
    return b64encode(data).rstrip("=")
