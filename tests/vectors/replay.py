"""Replaying a recorded connection: whatever was sent and received must come out of our code too.

Directions are `UP` (client to router) and `DOWN`, regardless of who recorded them.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest
from cryptography import x509

from heliograph.crypto import authorization, boxes, certificates, forwarding, keys, session_keys
from heliograph.crypto.chains import BlockCipher
from heliograph.crypto.errors import CryptoError
from heliograph.wire import handshakes, ntf, smp
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.handshakes import (
    ClientService,
    NtfClientHandshake,
    NtfServerHandshake,
    SmpClientHandshake,
    SmpServerHandshake,
)
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf import push
from heliograph.wire.primitives import b64decode, b64encode, pad, unpad
from heliograph.wire.requests import (
    Failure,
    Reply,
    Request,
    decode_replies,
    decode_requests,
    encode_reply as encode_reply_transmission,
)
from heliograph.wire.smp import messages
from heliograph.wire.smp.links import sender_id_of
from heliograph.wire.table import Table
from heliograph.wire.transmissions import (
    NTF_BLOCK_SIZE,
    SMP_BLOCK_SIZE,
    RawTransmission,
    Session,
    authorized_bytes,
    decode_transmission,
    encode_transmission,
    encode_unauthorized,
    pack,
    unpack,
)
from heliograph.wire.versions import SMP_ENCRYPTED_BLOCK
from tests.vectors.files import Line

UP, DOWN = "up", "down"
MALFORMED = {
    ErrorCode.BLOCK,
    ErrorCode.SESSION,
    ErrorCode.CMD_SYNTAX,
    ErrorCode.CMD_UNKNOWN,
    ErrorCode.CMD_NO_AUTH,
    ErrorCode.CMD_HAS_AUTH,
    ErrorCode.CMD_NO_ENTITY,
}
"""Errors that a router answers before it looks at what a command names."""


@dataclass
class Block:
    """One raw block after the handshake, and what it held; None if it was not a padded block."""

    direction: str
    raw: bytes
    content: bytes | None


@dataclass
class Replay:
    """One connection among all the events of its file."""

    events: list[Line]
    connection: str
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> Counter[str]:
        for event in self._own:
            handler = getattr(self, f"_on_{event['layer']}")
            handler(event)
            self.counts[event["layer"]] += 1
        if self._raw:
            self._check_handshake()
            self._check_blocks()
        return self.counts

    # What the recording holds

    @cached_property
    def _own(self) -> list[Line]:
        return [event for event in self.events if event["conn"] == self.connection]

    @cached_property
    def _by_router(self) -> bool:
        return any(event.get("dir", "").startswith("server_") for event in self._own)

    def _direction(self, event: Line) -> str:
        outgoing = event["dir"].removeprefix("server_") == "send"
        return UP if outgoing != self._by_router else DOWN

    @cached_property
    def _raw(self) -> list[tuple[str, bytes]]:
        return [
            (self._direction(event), bytes.fromhex(event["hex"]))
            for event in self._own
            if event["layer"] == "raw_block"
        ]

    @cached_property
    def _is_ntf(self) -> bool:
        return len(self._raw[0][1]) == NTF_BLOCK_SIZE

    @cached_property
    def _block_size(self) -> int:
        return NTF_BLOCK_SIZE if self._is_ntf else SMP_BLOCK_SIZE

    @cached_property
    def _hello(self) -> NtfServerHandshake | SmpServerHandshake:
        direction, raw = self._raw[0]
        assert direction == DOWN
        decode = handshakes.decode_ntf_server if self._is_ntf else handshakes.decode_smp_server
        return decode(unpad(raw))

    @cached_property
    def _answer(self) -> NtfClientHandshake | SmpClientHandshake:
        direction, raw = self._raw[1]
        assert direction == UP
        decode = handshakes.decode_ntf_client if self._is_ntf else handshakes.decode_smp_client
        return decode(unpad(raw))

    @cached_property
    def _garbled(self) -> bool:
        """Whether the client's handshake is none."""
        try:
            return self._answer is None
        except WireError:
            return True

    @cached_property
    def _unfinished(self) -> bool:
        """Whether the client ended with a part of a block, which a router does not answer."""
        direction, raw = [item for item in self._raw if item != (DOWN, b"")][-1]
        return direction == UP and len(raw) != self._block_size

    @cached_property
    def _service(self) -> ClientService | None:
        if self._garbled or not isinstance(self._answer, SmpClientHandshake):
            return None
        return self._answer.service

    @cached_property
    def _handshake_size(self) -> int:
        return 2 if self._service is None or self._refused else 3

    @cached_property
    def session(self) -> Session:
        make = Session.ntf if self._is_ntf else Session.smp
        return make(self._hello.session_id, self._answer.version)

    @cached_property
    def _commands(self) -> Table[Any]:
        return ntf.NTF_COMMANDS if self._is_ntf else smp.SMP_COMMANDS

    @cached_property
    def _responses(self) -> Table[Any]:
        return ntf.NTF_RESPONSES if self._is_ntf else smp.SMP_RESPONSES

    def _keys(self, name: str = "") -> list[bytes]:
        """Private keys in the whole file, because another connection may have recorded them."""
        return [
            bytes.fromhex(event["private_pkcs8"])
            for event in self.events
            if event["layer"] == "key" and event["name"].startswith(name)
        ]

    @cached_property
    def _tls(self) -> Line | None:
        return next((event for event in self._own if event["layer"] == "tls"), None)

    @cached_property
    def _chain(self) -> tuple[bytes, ...]:
        if isinstance(self._hello, SmpServerHandshake) and self._hello.auth is not None:
            return self._hello.auth.chain
        tls = self._tls or {"certs": []}
        return tuple(bytes.fromhex(cert["der"]) for cert in tls["certs"])

    @cached_property
    def _fingerprints(self) -> set[bytes]:
        """Identities of all routers that the file knows."""
        chains = [
            tuple(bytes.fromhex(cert["der"]) for cert in event["certs"])
            for event in self.events
            if event["layer"] == "tls" and event["certs"]
        ]
        return {_identity(chain).fingerprint for chain in (*chains, self._chain) if chain}

    @cached_property
    def _refused(self) -> bool:
        """Whether a router has to close the connection after the client's handshake."""
        if self._garbled:
            return True
        versions, version = self._hello.versions, self._answer.version
        stranger = self._fingerprints and self._answer.fingerprint not in self._fingerprints
        return version not in versions or bool(stranger)

    @cached_property
    def _secret(self) -> bytes | None:
        """The secret of block encryption, if this connection has it."""
        answer = self._answer
        if (
            not isinstance(answer, SmpClientHandshake)
            or answer.session_key is None
            or answer.proxy_server
            or answer.version < SMP_ENCRYPTED_BLOCK
        ):
            return None
        assert self._server_key is not None
        for private in self._keys("client_session_x25519"):
            if keys.public_key(private) == answer.session_key:
                return keys.dh(self._server_key, private)
        for private in self._keys("server_session_x25519"):
            if keys.public_key(private) == self._server_key:
                return keys.dh(answer.session_key, private)
        raise AssertionError("no session key to decrypt the recording with")

    @cached_property
    def _server_key(self) -> bytes | None:
        """The router's session key, its signature verified if the certificates are known."""
        hello = self._hello
        signed = hello.signed_key if isinstance(hello, NtfServerHandshake) else None
        if isinstance(hello, SmpServerHandshake) and hello.auth is not None:
            signed = hello.auth.signed_key
        if signed is None or not self._chain:
            return None
        leaf = _identity(self._chain).leaf_public_key
        self.counts["signed_key"] += 1
        return session_keys.verify_session_key(leaf, signed)

    @cached_property
    def blocks(self) -> list[Block]:
        ciphers: dict[str, BlockCipher] = {}
        encryptors: dict[str, BlockCipher] = {}
        if not self._refused and self._secret is not None:
            pair = (self.session.session_id, self._secret)
            ciphers = {UP: BlockCipher.server(*pair), DOWN: BlockCipher.client(*pair)}
            encryptors = {UP: BlockCipher.client(*pair), DOWN: BlockCipher.server(*pair)}
        blocks = []
        for direction, raw in self._raw[self._handshake_size :]:
            content: bytes | None
            if self._unfinished and len(raw) != self._block_size:
                continue
            if ciphers:
                content = ciphers[direction].decrypt(raw)
                assert encryptors[direction].encrypt(content, self._block_size) == raw
                self.counts["decrypted"] += 1
            else:
                try:
                    content = unpad(raw)
                    assert pad(content, self._block_size) == raw
                except WireError:
                    content = None
            blocks.append(Block(direction, raw, content))
        return blocks

    # Private routing and link data

    def _on_link_data(self, event: Line) -> None:
        """The command that carries the data has it unchanged."""
        sizes = len(event["encFixedData"]) // 2, len(event["encUserData"]) // 2
        assert sizes == (2048, 13824)
        assert sender_id_of(bytes.fromhex(event["corrId"])).hex() == event["senderId"]

    def _on_pfwd(self, event: Line) -> None:
        key = keys.box_key(_hex(event, "destPublic_spki"), _hex(event, "ephemeralPrivate_pkcs8"))
        corr_id, inner = _hex(event, "corrId"), _hex(event, "inner_block")
        sealed = _hex(event, "encTransmission")
        assert forwarding.seal_command(key, corr_id, inner) == sealed
        command = smp.PFWD(event["version"], _hex(event, "ephemeralPublic_spki"), sealed)
        assert self._recorded("send", corr_id) == smp.SMP_COMMANDS.encode(command, 18)
        self.counts["forwarded"] += 1

    def _on_pres_decrypted(self, event: Line) -> None:
        corr_id, content = _hex(event, "corrId"), _hex(event, "hex")
        pfwd = next(
            found
            for found in self._own
            if found["layer"] == "pfwd" and found["corrId"] == event["corrId"]
        )
        key = keys.box_key(_hex(pfwd, "destPublic_spki"), _hex(pfwd, "ephemeralPrivate_pkcs8"))
        answer = smp.PRES(forwarding.seal_answer(key, corr_id, content))
        assert self._recorded("recv", corr_id) == smp.SMP_RESPONSES.encode(answer, 18)
        session = Session.smp(_hex(pfwd, "destSessionId"), pfwd["version"])
        [reply] = decode_replies(session, smp.SMP_RESPONSES, content)
        assert isinstance(reply, Reply)
        self.counts["forwarded replies"] += 1

    def _on_rfwd_decrypted(self, event: Line) -> None:
        corr_id = _hex(event, "corrId")
        rfwd = smp.SMP_COMMANDS.decode(self._recorded("send", corr_id), 18)
        assert isinstance(rfwd, smp.RFWD)
        forwarded = forwarding.open_forwarded(self._relay_key, corr_id, rfwd.transmission)
        assert forwarding.seal_forwarded(self._relay_key, corr_id, forwarded) == rfwd.transmission
        assert forwarded.corr_id.hex() == event["fwdCorrId"]
        assert forwarded.key.hex() == event["fwdKey_spki"]
        assert forwarded.version == event["fwdVersion"]
        digest = hashlib.sha256(forwarded.transmission).hexdigest()
        assert digest == event["encTransmission_sha256"]
        [private] = self._keys("destination_session_x25519")
        arguments = keys.box_key(forwarded.key, private), forwarded.corr_id, forwarded.transmission
        if event["inner_block"] is None:
            with pytest.raises(CryptoError):
                forwarding.open_command(*arguments)
        else:
            assert forwarding.open_command(*arguments).hex() == event["inner_block"]
        self.counts["relayed"] += 1

    def _on_rres_decrypted(self, event: Line) -> None:
        corr_id = _hex(event, "corrId")
        rres = smp.SMP_RESPONSES.decode(self._recorded("recv", corr_id), 18)
        assert isinstance(rres, smp.RRES)
        forwarded = forwarding.open_response(self._relay_key, corr_id, rres.response)
        assert forwarding.seal_response(self._relay_key, corr_id, forwarded) == rres.response
        assert forwarded.corr_id.hex() == event["fwdCorrId"]
        assert hashlib.sha256(forwarded.response).hexdigest() == event["encResponse_sha256"]
        self.counts["relayed replies"] += 1

    @cached_property
    def _relay_key(self) -> bytes:
        [proxy], [destination] = (
            self._keys("proxy_session_x25519"),
            self._keys("destination_session_x25519"),
        )
        return keys.box_key(keys.public_key(destination), proxy)

    def _recorded(self, direction: str, corr_id: bytes) -> bytes:
        """Return the command or response of a transmission."""
        return next(
            _hex(event, "command")
            for event in self._own
            if (event["layer"], event.get("dir"), event.get("corrId"))
            == ("transmission", direction, corr_id.hex())
        )

    # Whole connection

    def _check_handshake(self) -> None:
        hello = self._hello
        if isinstance(hello, NtfServerHandshake):
            encoded = handshakes.encode_ntf_server(hello)
        else:
            encoded = handshakes.encode_smp_server(hello)
        assert pad(encoded, self._block_size) == self._raw[0][1]
        self.counts["handshake"] += 1
        if self._garbled:
            return
        answer = self._answer
        if isinstance(answer, NtfClientHandshake):
            encoded = handshakes.encode_ntf_client(answer)
        else:
            encoded = handshakes.encode_smp_client(answer)
        surplus = unpad(self._raw[1][1])[len(encoded) :]  # which a router ignores
        assert pad(encoded + surplus, self._block_size) == self._raw[1][1]
        self.counts["handshake"] += 1
        if self._handshake_size == 3:
            direction, raw = self._raw[2]
            response = handshakes.decode_service_response(unpad(raw))
            encoded = handshakes.encode_service_response(response)
            assert (direction, pad(encoded, self._block_size)) == (DOWN, raw)
            self.counts["handshake"] += 1
        if self._tls is not None:
            assert hello.session_id.hex() == self._tls["sessionId_tlsUnique"]
        if self._chain and not self._refused:
            assert answer.fingerprint == _identity(self._chain).fingerprint
            self.counts["identity"] += 1
        if self._server_key is not None:
            assert keys.algorithm_of(self._server_key) is Algorithm.X25519

    def _check_blocks(self) -> None:
        for index, block in enumerate(self.blocks):
            if self._refused:
                assert block.direction == UP or block.raw == b""
                continue
            if block.direction == DOWN:
                self._check_replies(block)
                continue
            until = next(
                (
                    later
                    for later in range(index + 1, len(self.blocks))
                    if self.blocks[later].direction == UP
                ),
                len(self.blocks),
            )
            self._check_requests(block, self._replies(index, until), self._replies(index))

    def _replies(self, start: int, end: int | None = None) -> list[Reply[Any]]:
        replies = []
        for block in self.blocks[start:end]:
            if block.direction == DOWN:
                assert block.content is not None
                for reply in decode_replies(self.session, self._responses, block.content):
                    assert isinstance(reply, Reply)
                    replies.append(reply)
        return replies

    def _check_replies(self, block: Block) -> None:
        assert block.content is not None
        replies = decode_replies(self.session, self._responses, block.content)
        encoded = []
        for reply in replies:
            assert isinstance(reply, Reply), reply
            encoded.append(
                encode_reply_transmission(
                    *(self.session, self._responses, reply.corr_id),
                    *(reply.entity_id, reply.message),
                )
            )
        assert pack(self.session, encoded) == [block.content]
        self.counts["replies"] += len(replies)

    def _check_requests(
        self, block: Block, soon: list[Reply[Any]], later: list[Reply[Any]]
    ) -> None:
        """What we find wrong, and nothing else, the router found wrong."""
        requests: list[Request[Any] | Failure]
        if block.content is None:
            try:
                unpad(block.raw)
                raise AssertionError("a block without content")
            except WireError as exc:
                requests = [Failure(b"", b"", exc.error)]
        else:
            requests = decode_requests(self.session, self._commands, block.content)
        for request in requests:
            among = later if request.corr_id else soon
            answers = [reply for reply in among if reply.corr_id == request.corr_id]
            if isinstance(request, Failure):
                expected = (ntf.ERR if self._is_ntf else smp.ERR)(request.error)
                wanted = Reply(request.corr_id, request.entity_id, expected)
                assert wanted in answers, (request, answers)
                self.counts["failures"] += 1
                continue
            command = self._commands.encode(request.command, self.session.version)
            again = encode_transmission(
                *(self.session, request.corr_id, request.entity_id, command),
                *(request.auth, request.service_signature),
            )
            assert block.content is not None
            assert again in unpack(self.session, block.content)
            for reply in answers:
                error = getattr(reply.message, "error", None)
                assert error not in MALFORMED
            if isinstance(request.command, smp.PING) and soon:
                assert Reply(request.corr_id, b"", smp.PONG()) in answers
            self.counts["requests"] += 1

    # Single events

    def _on_tls(self, event: Line) -> None:
        for cert in event["certs"]:
            digest = certificates.fingerprint(bytes.fromhex(cert["der"]))
            if "sha256_b64url" not in cert:
                continue
            assert b64encode(digest) == cert["sha256_b64url"]
            assert b64decode(cert["sha256_b64url"]) == digest
        alpn = handshakes.NTF_ALPN if self._is_ntf else handshakes.SMP_ALPN
        assert event["alpn"] in (alpn, None)

    def _on_key(self, event: Line) -> None:
        private = bytes.fromhex(event["private_pkcs8"])
        assert keys.public_key(private).hex() == event["public_spki"]
        assert b64encode(private) == event["private_pkcs8_b64url"]

    def _on_secret(self, event: Line) -> None:
        """A secret of the recording is agreed from one of its keys and a key of a response."""
        publics = [
            reply.message.dh_key
            for connection in dict.fromkeys(item["conn"] for item in self.events)
            for reply in Replay(self.events, connection).known_replies
            if hasattr(reply.message, "dh_key")
        ]
        agreed = {
            keys.dh(public, private).hex()
            for private in self._keys()
            if keys.private_algorithm_of(private) is Algorithm.X25519
            for public in publics
        }
        assert event["hex"] in agreed

    @cached_property
    def known_replies(self) -> list[Reply[Any]]:
        return [] if not self._raw or self._refused else self._replies(0)

    def _on_raw_block(self, event: Line) -> None:
        size = len(event["hex"]) // 2
        if self._direction(event) == DOWN and size == 0:
            assert self._refused or self._unfinished
        else:
            assert size == self._block_size or self._unfinished

    def _on_handshake_done(self, event: Line) -> None:
        assert event["version"] == self.session.version
        assert bool(event.get("blockEncryption")) is (self._secret is not None)
        recorded = event.get("serverSessionPubKey_spki")
        if recorded is not None:
            assert self._server_key is not None
            assert self._server_key.hex() == recorded

    def _on_block_content(self, event: Line) -> None:
        """Written before the block was sent, or after it was received."""
        if not self._raw:
            return  # recorded above the blocks; its transmissions are checked
        place = next(index for index, item in enumerate(self._own) if item is event)
        incoming = event["dir"].endswith("recv")
        nearby = reversed(self._own[:place]) if incoming else iter(self._own[place:])
        raw = next(
            item
            for item in nearby
            if item["layer"] == "raw_block" and self._direction(item) == self._direction(event)
        )
        raws = [item for item in self._own if item["layer"] == "raw_block"]
        number = next(index for index, item in enumerate(raws) if item is raw)
        content = self.blocks[number - self._handshake_size].content
        assert content is not None
        assert content.hex() == event["hex"]

    def _on_transmission(self, event: Line) -> None:
        corr_id = bytes.fromhex(event["corrId"])
        entity_id = bytes.fromhex(event["entityId"])
        command = bytes.fromhex(event["command"])
        if not self._raw:
            relayed: Table[Any] = smp.SMP_COMMANDS if event["dir"] == "send" else smp.SMP_RESPONSES
            assert relayed.encode(relayed.decode(command, 18), 18) == command
            return
        table = self._commands if self._direction(event) == UP else self._responses
        self._check_command(table, command)
        if "transmission" not in event:
            contents = [
                decode_transmission(self.session, item)
                for block in self.blocks
                if block.direction == self._direction(event) and block.content is not None
                for item in unpack(self.session, block.content)
            ]
            raw = next(
                item
                for item in contents
                if (item.corr_id, item.entity_id, item.command) == (corr_id, entity_id, command)
            )
            if "auth" in event:
                self.check_router_side(event, raw)
            return
        data = bytes.fromhex(event["transmission"])
        raw = decode_transmission(self.session, data)
        assert (raw.corr_id, raw.entity_id, raw.command) == (corr_id, entity_id, command)
        if "sessionId" not in event:  # received, so without authorization
            assert encode_transmission(self.session, corr_id, entity_id, command) == data
            return
        assert self.session.session_id.hex() == event["sessionId"]
        assert self.session.version == event["version"]
        authorized = authorized_bytes(self.session, corr_id, entity_id, command)
        assert raw.authorized == authorized
        assert authorized.hex() == event["tForAuth"]
        sent = encode_unauthorized(corr_id, entity_id, command)
        assert (sent if self.session.implied_session else authorized).hex() == event["tToSend"]
        encoded = encode_transmission(
            self.session, corr_id, entity_id, command, raw.auth, raw.service_signature
        )
        assert encoded == data
        self._check_authorization(event, raw)

    def _check_command(self, table: Table[Any], command: bytes) -> None:
        try:
            value = table.decode(command, self.session.version)
        except WireError:
            # Sent on purpose; that the router agreed is checked with its block.
            assert table is self._commands
            self.counts["malformed"] += 1
            return
        assert table.encode(value, self.session.version) == command

    def _check_authorization(self, event: Line, raw: RawTransmission) -> None:
        if event["authKey_pkcs8"] is None:
            assert raw.auth == b""
            return
        private = bytes.fromhex(event["authKey_pkcs8"])
        server = event["serverSessionPubKey_spki"]
        server_key = None if server is None else bytes.fromhex(server)
        authorized = self._authorized(raw)
        made = authorization.authorize(private, server_key, raw.corr_id, authorized)
        assert made == raw.auth
        if keys.private_algorithm_of(private) is Algorithm.X25519:
            # Agreement is symmetric, so the client's key verifies as the router's would.
            public, session_private = server_key, private
        else:
            public, session_private = keys.public_key(private), None
        checked = (public, session_private, raw.corr_id)
        assert authorization.verify_authorization(*checked, authorized, raw.auth)
        assert not authorization.verify_authorization(*checked, authorized + b"x", raw.auth)
        self.counts["authorizations"] += 1

    def _authorized(self, raw: RawTransmission) -> bytes:
        """What the entity's key covers; a service's own signature is checked on the way."""
        if raw.service_signature is None:
            return raw.authorized
        service_key, identity = self._service_key()
        assert keys.verify(service_key, raw.service_signature, raw.authorized)
        return identity.fingerprint + raw.authorized

    def _service_key(self) -> tuple[bytes, certificates.Identity]:
        assert self._service is not None
        identity = _identity(self._service.auth.chain)
        signed = self._service.auth.signed_key
        return session_keys.verify_session_key(identity.leaf_public_key, signed), identity

    def check_router_side(self, event: Line, raw: RawTransmission) -> None:
        assert raw.auth.hex() == event["auth"]
        signature = event["serviceSig"]
        assert raw.service_signature == (None if signature is None else bytes.fromhex(signature))
        if not raw.auth:
            return
        publics = [keys.public_key(private) for private in self._keys()]
        if self._service is not None:
            publics.append(self._service_key()[0])
        authorized = self._authorized(raw)
        assert any(
            authorization.verify_authorization(
                public, session_private, raw.corr_id, authorized, raw.auth
            )
            for public in publics
            for session_private in self._keys("server_session_x25519")
        )
        self.counts["authorizations"] += 1

    def _on_nmsg_decrypted(self, event: Line) -> None:
        secret, nonce, boxed, plain = (
            bytes.fromhex(event[name]) for name in ("secret", "nonce", "encNMsgMeta", "plain")
        )
        assert boxes.open_box_padded(secret, nonce, boxed) == plain
        assert boxes.box_padded(secret, nonce, plain, push.NMSG_META_SIZE) == boxed
        assert pad(plain, push.NMSG_META_SIZE).hex() == event["padded_plain"]
        assert push.encode_nmsg_meta(push.decode_nmsg_meta(plain)) == plain
        assert smp.NMSG(nonce, boxed) in [reply.message for reply in self.known_replies]

    def _on_msg_decrypted(self, event: Line) -> None:
        secret, msg_id, plain = (
            bytes.fromhex(event[name]) for name in ("secret", "msgId", "plain")
        )
        body = next(
            reply.message.body
            for reply in self.known_replies
            if isinstance(reply.message, smp.MSG) and reply.message.msg_id == msg_id
        )
        nonce = boxes.nonce_from(msg_id)
        assert boxes.open_box_padded(secret, nonce, body) == plain
        assert boxes.box_padded(secret, nonce, plain, messages.RCV_MESSAGE_SIZE) == body
        assert messages.encode_rcv_message(messages.decode_rcv_message(plain)) == plain

    def _on_push_decrypted(self, event: Line) -> None:
        secret, nonce, boxed, plain = (
            bytes.fromhex(event[name]) for name in ("secret", "nonce", "ciphertext", "plain")
        )
        assert len(boxed) == event["ciphertext_len"]
        assert boxes.open_box_padded(secret, nonce, boxed) == plain
        assert boxes.box_padded(secret, nonce, plain, push.PUSH_SIZE) == boxed
        kind: Any = {"message": push.MessagePush, "verification": push.VerificationPush}
        assert (event["token"], kind[event["type"]](nonce, boxed)) in self._pushes
        if event["type"] == "message":
            listed = push.decode_pn_messages(plain)
            assert push.encode_pn_messages(listed) == plain

    @cached_property
    def _pushes(self) -> list[tuple[str, push.Push]]:
        return [
            (event["path"].removeprefix("/3/device/"), push.decode_push(event["body"].encode()))
            for event in self.events
            if event["layer"] == "apns_request"
        ]

    def _on_apns_request(self, event: Line) -> None:
        body = event["body"].encode()
        assert push.encode_apns(push.decode_push(body)) == body

    def _on_note(self, event: Line) -> None:
        assert event["text"]


def _identity(chain: tuple[bytes, ...]) -> certificates.Identity:
    """The chain's, at a time when all its certificates were valid."""
    starts = [x509.load_der_x509_certificate(der).not_valid_before_utc for der in chain]
    return certificates.identity_of(chain, max(starts).timestamp())


def _hex(event: Line, name: str) -> bytes:
    return bytes.fromhex(event[name])
