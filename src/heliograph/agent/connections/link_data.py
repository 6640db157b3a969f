"""The data that short links lead to: signed, then encrypted with a key derived from the link's.

The link key is the hash of the fixed data, so that a router can neither read nor replace it. The
fixed data has a root key, which signs it. The user data is signed by the root key too, or in a
contact address by one of the owners that it lists.
"""

import hashlib
from dataclasses import dataclass, field

from heliograph.agent.connections.invitation import Invitation, invitation_codec
from heliograph.agent.connections.short_link import (
    ShortLink,
    contact_keys,
    invitation_key,
    short_link_codec,
)
from heliograph.agent.errors import BadInvitation
from heliograph.crypto.boxes import box_padded, open_box_padded, random_nonce
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, sign, verify
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm, public_key_algorithm
from heliograph.wire.primitives import (
    Codec,
    Reader,
    boolean,
    encode_large,
    encode_short,
    list_of,
    u16,
)

AGENT_VERSIONS = (2, 7)
FIXED_SIZE, USER_SIZE = 2008, 13784
"""Padded sizes of the signed data, before encryption."""
NONCE_SIZE = 24
MAX_SHORT_DATA = 254
"""Longer user data has a longer length in front, after a byte that is no short length."""

_LONG = b"\xff"
_VERSIONS = b"".join(map(u16.encode, AGENT_VERSIONS))


@dataclass(frozen=True, slots=True)
class SealedLink:
    """The encrypted data of a link, as routers store it, and the key that decrypts it."""

    link_key: bytes = field(repr=False)
    fixed: bytes = field(repr=False)
    user: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Owner:
    """Another owner of a contact address, authorized by the root key or an owner before it."""

    owner_id: bytes
    key: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    @classmethod
    def authorized(cls, owner_id: bytes, key: bytes, by: bytes) -> "Owner":
        """Authorize a public key with the private key of an owner or of the root."""
        return cls(owner_id, key, sign(by, owner_id + key))


@dataclass(frozen=True, slots=True)
class ContactData:
    """What the owners of a contact address, group or channel say about it."""

    user_data: bytes = field(default=b"", repr=False)
    direct: bool = True
    """Whether to connect by the connection request, and not by the relays."""
    owners: tuple[Owner, ...] = ()
    relays: tuple[ShortLink, ...] = ()


@dataclass(frozen=True, slots=True)
class ContactLink:
    """What a contact link leads to; `request` is the connection request of its owner's agent."""

    root: bytes
    request: bytes = field(repr=False)
    data: ContactData


def seal_link(invitation: Invitation, root: KeyPair, user_data: bytes = b"") -> SealedLink:
    """Encrypt an invitation for its link. `root` must be a fresh Ed25519 key pair."""
    fixed = _fixed(root, invitation_codec.encode(invitation))
    link_key = hashlib.sha3_256(fixed).digest()
    key = invitation_key(link_key)
    user = b"I" + _VERSIONS + _encode_user(user_data)
    return SealedLink(
        link_key, _seal(key, root, fixed, FIXED_SIZE), _seal(key, root, user, USER_SIZE)
    )


def seal_contact(request: bytes, root: KeyPair, data: ContactData) -> SealedLink:
    """Encrypt a connection request and data for the link of a contact address."""
    fixed = _fixed(root, request)
    link_key = hashlib.sha3_256(fixed).digest()
    sealed = _seal(contact_keys(link_key)[1], root, fixed, FIXED_SIZE)
    return SealedLink(link_key, sealed, seal_contact_data(link_key, root, data))


def seal_contact_data(link_key: bytes, signer: KeyPair, data: ContactData) -> bytes:
    """Encrypt other data for a link (LSET), signed by the root key or an owner."""
    user = b"C" + _VERSIONS + contact_data_codec.encode(data)
    return _seal(contact_keys(link_key)[1], signer, user, USER_SIZE)


def open_link(link: ShortLink, sender_id: bytes, fixed: bytes, user: bytes) -> Invitation:
    """Decrypt and check the data of an invitation. Raises `BadInvitation`."""
    try:
        root, request = open_fixed(link, fixed)
        open_user(link, root, user)
        invitation = invitation_codec.decode(Reader(request))
    except (CryptoError, WireError) as exc:
        raise BadInvitation(f"the router's data does not belong to this link: {exc}") from None
    place = invitation.address.fingerprint, invitation.snd_id
    if place != (link.address.fingerprint, sender_id):
        raise BadInvitation("the router's data is of another queue than the link's")
    return invitation


def open_contact(link: ShortLink, fixed: bytes, user: bytes) -> ContactLink:
    """Decrypt and check the data of a contact address. Raises `BadInvitation`."""
    try:
        root, request = open_fixed(link, fixed)
        signature, data = _open(link.box_key, user)
        reader = _after_head(data, b"C")
        contact = contact_data_codec.decode(reader)
        _check_owners(root, contact.owners)
        if not any(verify(key, signature, data) for key in _signers(root, contact.owners)):
            raise CryptoError("the signature of the user data does not fit")
    except (CryptoError, WireError) as exc:
        raise BadInvitation(f"the router's data does not belong to this link: {exc}") from None
    return ContactLink(root, request, contact)


def open_fixed(link: ShortLink, boxed: bytes) -> tuple[bytes, bytes]:
    """Return the root key and the connection request. Raises `CryptoError` or `WireError`."""
    signature, data = _open(link.box_key, boxed)
    if hashlib.sha3_256(data).digest() != link.link_key:
        raise CryptoError("its hash differs from the link key")
    reader = _after_head(data, b"")
    root = reader.short()
    if public_key_algorithm(root) is not Algorithm.ED25519 or not verify(root, signature, data):
        raise CryptoError("its signature does not fit")
    return root, reader.tail()


def open_user(link: ShortLink, root: bytes, boxed: bytes) -> bytes:
    """Return the user data of an invitation. Raises `CryptoError` or `WireError`."""
    signature, data = _open(link.box_key, boxed)
    reader = _after_head(data, b"I")
    if not verify(root, signature, data):
        raise CryptoError("its signature does not fit")
    return _decode_user(reader)


def _signers(root: bytes, owners: tuple[Owner, ...]) -> tuple[bytes, ...]:
    return (root, *(owner.key for owner in owners))


def _check_owners(root: bytes, owners: tuple[Owner, ...]) -> None:
    """Check that each owner is new, and authorized by the root or by one before."""
    for place, owner in enumerate(owners):
        former = owners[:place]
        if owner.key in _signers(root, former) or owner.owner_id in {o.owner_id for o in former}:
            raise CryptoError("an owner is listed twice")
        signed = owner.owner_id + owner.key
        if not any(verify(key, owner.signature, signed) for key in _signers(root, former)):
            raise CryptoError("an owner was not authorized")


def _fixed(root: KeyPair, request: bytes) -> bytes:
    return _VERSIONS + encode_short(root.public) + request


def _seal(key: bytes, signer: KeyPair, data: bytes, size: int) -> bytes:
    nonce = random_nonce()
    signed = encode_short(sign(signer.private, data)) + data
    if len(signed) > size - 2:
        raise ValueError(f"{len(data)} bytes of link data, which is too much")
    return nonce + box_padded(key, nonce, signed, size)


def _open(key: bytes, boxed: bytes) -> tuple[bytes, bytes]:
    """Return the signature and the signed bytes."""
    reader = Reader(open_box_padded(key, boxed[:NONCE_SIZE], boxed[NONCE_SIZE:]))
    return reader.short(), reader.tail()


def _after_head(data: bytes, mode: bytes) -> Reader:
    """Return a reader of what follows the mode and the versions."""
    reader = Reader(data)
    if reader.take(len(mode)) != mode:
        raise reader.fail("data of another kind of link")
    reader.u16()
    reader.u16()
    return reader


def _encode_user(data: bytes) -> bytes:
    return encode_short(data) if len(data) <= MAX_SHORT_DATA else _LONG + encode_large(data)


def _decode_user(reader: Reader) -> bytes:
    if reader.data[reader.pos : reader.pos + 1] == _LONG:
        reader.take(1)
        return reader.large()
    return reader.short()


def _encode_owner(owner: Owner) -> bytes:
    parts = owner.owner_id, owner.key, owner.signature
    return encode_short(b"".join(map(encode_short, parts)))


def _decode_owner(reader: Reader) -> Owner:
    inner = Reader(reader.short())  # what follows is for later versions
    owner = Owner(inner.short(), inner.short(), inner.short())
    if public_key_algorithm(owner.key) is not Algorithm.ED25519:
        raise reader.fail("an owner without an Ed25519 key")
    return owner


_owners = list_of(Codec[Owner]("owner", _encode_owner, _decode_owner), least=0)
_relays = list_of(short_link_codec, least=0)


def _encode_contact_data(data: ContactData) -> bytes:
    return (
        boolean.encode(data.direct)
        + _owners.encode(data.owners)
        + _relays.encode(data.relays)
        + _encode_user(data.user_data)
    )


def _decode_contact_data(reader: Reader) -> ContactData:
    direct = boolean.decode(reader)
    owners, relays = _owners.decode(reader), _relays.decode(reader)
    return ContactData(_decode_user(reader), direct, owners, relays)


contact_data_codec = Codec[ContactData]("contact data", _encode_contact_data, _decode_contact_data)
