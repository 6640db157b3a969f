"""A sender that reaches a destination through its proxy, as an app does."""

import os
from dataclasses import dataclass
from typing import Any

from heliograph.crypto.authorization import authorize
from heliograph.crypto.certificates import identity_of
from heliograph.crypto.forwarding import open_answer, seal_command
from heliograph.crypto.keys import box_key, generate_key_pair
from heliograph.crypto.session_keys import verify_session_key
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Reply, decode_replies
from heliograph.wire.transmissions import Session, authorized_bytes, encode_transmission, pack
from tests.smp.support import NOW, Peer


@dataclass
class ProxiedSender:
    """A peer of the proxy, with the session of the proxy that PKEY named."""

    peer: Peer
    pkey: smp.PKEY
    version: int

    @classmethod
    async def open(cls, peer: Peer, destination: ServerAddress) -> "ProxiedSender":
        pkey = await peer.ask(smp.PRXY(destination.without_password()))
        assert isinstance(pkey, smp.PKEY), pkey
        return cls(peer, pkey, pkey.versions.max)

    @property
    def session_key(self) -> bytes:
        """The destination's session key, which its certificate signed."""
        identity = identity_of(self.pkey.auth.chain, NOW)
        return verify_session_key(identity.leaf_public_key, self.pkey.auth.signed_key)

    @property
    def session(self) -> Session:
        return Session.smp(self.pkey.session_id, self.version)

    def transmission(
        self, corr_id: bytes, command: Any, entity_id: bytes, key: bytes | None
    ) -> bytes:
        data = smp.SMP_COMMANDS.encode(command, self.version)
        auth = b""
        if key is not None:
            authorized = authorized_bytes(self.session, corr_id, entity_id, data)
            auth = authorize(key, self.session_key, corr_id, authorized)
        return encode_transmission(self.session, corr_id, entity_id, data, auth)

    async def ask(self, command: Any, entity_id: bytes, key: bytes | None = None) -> Any:
        """The destination's answer, or the proxy's if that is ERR."""
        corr_id = os.urandom(24)
        [content] = pack(self.session, [self.transmission(corr_id, command, entity_id, key)])
        reply = await self.forward(corr_id, content)
        if not isinstance(reply, Reply):
            return reply
        assert (reply.corr_id, reply.entity_id) == (corr_id, entity_id)
        return reply.message

    async def forward(self, corr_id: bytes, content: bytes) -> Any:
        """The reply of the destination to this block content, or the proxy's ERR."""
        keys = generate_key_pair(Algorithm.X25519)
        key = box_key(self.session_key, keys.private)
        command = smp.PFWD(self.version, keys.public, seal_command(key, corr_id, content))
        pres = await self.peer.ask(command, self.pkey.session_id, corr_id=corr_id)
        if not isinstance(pres, smp.PRES):
            return pres
        opened = open_answer(key, corr_id, pres.response)
        [reply] = decode_replies(self.session, smp.SMP_RESPONSES, opened)
        return reply
