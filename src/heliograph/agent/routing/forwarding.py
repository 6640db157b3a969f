"""The sender's side of private routing: check a session, encrypt commands, decrypt answers.

The proxy's session with the destination replaces a direct one: the same transmissions, authorized
for its ID and with its key, and encrypted once more for each command.
"""

from dataclasses import dataclass, field
from typing import TypeVar, cast

from heliograph.crypto.authorization import authorize
from heliograph.crypto.certificates import identity_of
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.forwarding import open_answer, seal_command
from heliograph.crypto.keys import KeyPair, box_key
from heliograph.crypto.session_keys import verify_session_key
from heliograph.transport.errors import ClientError, RequestRefused, UnexpectedReply
from heliograph.transport.protocols import SMP
from heliograph.wire import smp
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm, public_key_algorithm
from heliograph.wire.requests import Failure, decode_replies
from heliograph.wire.table import Command
from heliograph.wire.transmissions import Session, authorized_bytes, encode_transmission, pack
from heliograph.wire.versions import VersionRange

R = TypeVar("R")


class NoCommonVersion(ClientError):
    """The destination supports no version of ours."""


@dataclass(frozen=True, slots=True)
class ForwardingSession:
    """A proxy's session with a destination."""

    session: Session
    peer_key: bytes = field(repr=False)

    @classmethod
    def check(
        cls, answer: smp.PKEY, fingerprint: bytes, versions: VersionRange, now: float
    ) -> "ForwardingSession":
        """Check that the session is with this router. Raises `ClientError`."""
        version = min(answer.versions.max, versions.max)
        if version < max(answer.versions.min, versions.min):
            raise NoCommonVersion("the destination has no protocol version in common with us")
        try:
            identity = identity_of(answer.auth.chain, now)
            key = verify_session_key(identity.leaf_public_key, answer.auth.signed_key)
        except CryptoError as exc:
            raise ClientError(f"the proxy's session is not genuine: {exc}") from None
        if identity.fingerprint != fingerprint:
            raise ClientError("the proxy's session is with another router")
        if public_key_algorithm(key) is not Algorithm.X25519:
            raise ClientError("the destination's session key is not an X25519 key")
        return cls(Session.smp(answer.session_id, version), key)

    def seal(
        self,
        corr_id: bytes,
        keys: KeyPair,
        command: Command[R],
        entity_id: bytes,
        key: bytes | None,
    ) -> smp.PFWD:
        """Encrypt a command for the destination. `corr_id` and `keys` must be fresh."""
        session = self.session
        try:
            encoded = SMP.commands.encode(command, session.version)  # type: ignore[arg-type]
            auth = b""
            if key is not None:
                authorized = authorized_bytes(session, corr_id, entity_id, encoded)
                auth = authorize(key, self.peer_key, corr_id, authorized)
            transmission = encode_transmission(session, corr_id, entity_id, encoded, auth)
            [content] = pack(session, [transmission])
            boxed = seal_command(box_key(self.peer_key, keys.private), corr_id, content)
        except (WireError, CryptoError) as exc:
            raise ClientError(str(exc)) from exc
        return smp.PFWD(session.version, keys.public, boxed)

    def open(
        self, corr_id: bytes, keys: KeyPair, command: Command[R], entity_id: bytes, answer: smp.PRES
    ) -> R:
        """Decrypt the destination's answer. Raises `RequestRefused` for ERR."""
        try:
            content = open_answer(box_key(self.peer_key, keys.private), corr_id, answer.response)
        except CryptoError as exc:
            raise UnexpectedReply("the destination's answer cannot be decrypted") from exc
        replies = decode_replies(self.session, SMP.responses, content)
        reply = replies[0] if len(replies) == 1 else None
        if reply is None or isinstance(reply, Failure):
            raise UnexpectedReply("the destination's answer is malformed")
        if isinstance(reply.message, smp.ERR):
            raise RequestRefused(reply.message.error)
        if reply.corr_id != corr_id or reply.entity_id not in (b"", entity_id):
            raise UnexpectedReply("the destination's answer is to another command")
        if type(reply.message) not in command.responses:
            raise UnexpectedReply(f"{type(reply.message).__name__} does not answer this command")
        return cast(R, reply.message)
