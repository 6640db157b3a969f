"""An invitation: where to send to someone, as text for people and as bytes inside a message.

The text is the queue URI of the SimpleX agents:
`smp://<fingerprint>@<hosts>[:port]/<sender ID>#/?v=2-4&dh=<key>&q=m`.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote

from heliograph.agent.errors import BadInvitation
from heliograph.wire.addresses import ServerAddress, decode_address, smp_server
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm, public_key_algorithm, x25519_public_key
from heliograph.wire.primitives import (
    Codec,
    Reader,
    b64decode,
    b64encode,
    boolean,
    encode_short,
)

CLIENT_VERSIONS = "2-4"
CLIENT_VERSION = 4

_TEXT = re.compile(r"(?P<address>smp://[^#?]+)/(?P<snd_id>[A-Za-z0-9_-]+=*)/?#/?\?(?P<query>.*)")
_VERSIONS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Invitation:
    """A queue as its sender sees it. `dh_key` is the recipient's, for end-to-end encryption."""

    address: ServerAddress
    snd_id: bytes = field(repr=False)
    dh_key: bytes = field(repr=False)
    sender_can_secure: bool = False
    link: str | None = field(default=None, repr=False, compare=False)
    """The text of the short link to the queue, if the router stores one."""

    def __str__(self) -> str:
        # Two names of one parameter: clients before version 4 know only the second.
        secure = "&q=m&k=s" if self.sender_can_secure else ""
        return (
            f"{self.address.without_password()}/{b64encode(self.snd_id)}"
            f"#/?v={CLIENT_VERSIONS}&dh={quote(b64encode(self.dh_key), safe='')}{secure}"
        )

    @classmethod
    def parse(cls, text: str) -> "Invitation":
        """Parse the text of an invitation. Raises `BadInvitation`."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise BadInvitation("not an invitation: it has the form smp://.../...#/?v=...&dh=...")
        query = dict(parse_qsl(match["query"], keep_blank_values=True))
        _check_versions(query.get("v", ""))
        try:
            address = decode_address(match["address"])
            snd_id, dh_key = b64decode(match["snd_id"]), b64decode(query.get("dh", ""))
        except WireError as exc:
            raise BadInvitation(f"a damaged invitation: {exc}") from None
        if public_key_algorithm(dh_key) is not Algorithm.X25519 or len(snd_id) > 255:
            raise BadInvitation("a damaged invitation: its key is not an X25519 key")
        can_secure = query["q"] == "m" if "q" in query else query.get("k") == "s"
        return cls(address.without_password(), snd_id, dh_key, can_secure)


def _check_versions(text: str) -> None:
    match = _VERSIONS.fullmatch(text)
    if match is None:
        raise BadInvitation("a damaged invitation: it has no version")
    if int(match[1]) > CLIENT_VERSION:
        raise BadInvitation("an invitation of a later version: upgrade Heliograph to use it")


def _encode(invitation: Invitation) -> bytes:
    return (
        smp_server.encode(invitation.address)
        + encode_short(invitation.snd_id)
        + x25519_public_key.encode(invitation.dh_key)
        + boolean.encode(invitation.sender_can_secure)
    )


def _decode(reader: Reader) -> Invitation:
    address = smp_server.decode(reader)
    if not _has_text(address):
        raise reader.fail("an address that cannot be stored")
    return Invitation(
        address, reader.short(), x25519_public_key.decode(reader), boolean.decode(reader)
    )


def _has_text(address: ServerAddress) -> bool:
    """Return whether an address can be stored as text: not every encoded host or port can."""
    try:
        return decode_address(str(address)) == address
    except WireError:
        return False


invitation_codec = Codec[Invitation]("queue", _encode, _decode)
