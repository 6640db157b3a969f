"""RFWD at the destination, from a proxy that may do anything."""

import os
from typing import Any

import pytest

from heliograph.crypto.boxes import box_with
from heliograph.crypto.forwarding import open_answer, open_response, seal_command, seal_forwarded
from heliograph.crypto.keys import box_key, generate_key_pair
from heliograph.wire import smp
from heliograph.wire.errors import PROXY, BrokerError, ErrorCode, TransportError
from heliograph.wire.keys import Algorithm
from heliograph.wire.requests import Reply, decode_replies
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.smp.forwarding import ForwardedTransmission
from heliograph.wire.transmissions import Session, encode_transmission, pack
from tests.smp.support import OK, Peer, Queue, World, create, error

CRYPTO, SYNTAX = error(ErrorCode.CRYPTO), error(ErrorCode.CMD_SYNTAX)
NO_KEY = error(PROXY(BrokerError("TRANSPORT", TransportError.NO_AUTH)))


class Proxy:
    """A connection that forwards commands of its own making."""

    def __init__(self, peer: Peer) -> None:
        established = peer.client.established
        assert established.peer_key is not None
        assert established.session_private is not None
        self.peer = peer
        self.session_id = established.session.session_id
        self.server_key = established.peer_key
        self.key = box_key(self.server_key, established.session_private)

    async def rfwd(self, forwarded: ForwardedTransmission) -> Any:
        nonce = os.urandom(24)
        sealed = seal_forwarded(self.key, nonce, forwarded)
        answer = await self.peer.ask(smp.RFWD(sealed), corr_id=nonce)
        if not isinstance(answer, smp.RRES):
            return answer
        response = open_response(self.key, nonce, answer.response)
        assert response.corr_id == forwarded.corr_id
        return response.response

    async def send(self, queue: Queue, version: int, corr_id: bytes, inner_id: bytes) -> Any:
        """SEND with this version and correlation ID outside, and `inner_id` inside."""
        served = min(max(version, 8), 19)
        session = Session.smp(self.session_id, served)
        command = smp.SMP_COMMANDS.encode(smp.SEND(MsgFlags(False), b"hello"), served)
        [content] = pack(session, [encode_transmission(session, inner_id, queue.snd_id, command)])
        pair = generate_key_pair(Algorithm.X25519)
        key = box_key(self.server_key, pair.private)
        sealed = seal_command(key, corr_id, content)
        answer = await self.rfwd(ForwardedTransmission(corr_id, version, pair.public, sealed))
        if not isinstance(answer, bytes):
            return answer
        opened = open_answer(key, corr_id, answer)
        [reply] = decode_replies(session, smp.SMP_RESPONSES, opened)
        assert isinstance(reply, Reply)
        assert reply.corr_id == inner_id
        return reply.message


@pytest.mark.parametrize("version", [1, 8, 17, 19, 30, 65535])
async def test_any_version_is_served_by_the_nearest_rules(small_world: World, version: int) -> None:
    queue = await create(await small_world.connect())
    proxy = Proxy(await small_world.connect())
    assert await proxy.send(queue, version, os.urandom(24), os.urandom(24)) == OK


@pytest.mark.parametrize("size", [0, 1, 23, 24, 25])
async def test_correlation_ids_of_any_size(small_world: World, size: int) -> None:
    queue = await create(await small_world.connect())
    proxy = Proxy(await small_world.connect())
    assert await proxy.send(queue, 17, os.urandom(size), os.urandom(24)) == OK


async def test_sessions_of_all_versions_forward(small_world: World) -> None:
    """Also with encrypted blocks, since the key is that of the handshake."""
    queue = await create(await small_world.connect())
    for version in (7, 8, 10, 11, 14, 18, 19):
        proxy = Proxy(await small_world.connect(version))
        assert await proxy.send(queue, 8, os.urandom(24), os.urandom(24)) == OK


async def test_boxes_that_do_not_open(small_world: World) -> None:
    proxy = Proxy(await small_world.connect())
    assert await proxy.peer.ask(smp.RFWD(b"")) == CRYPTO
    assert await proxy.peer.ask(smp.RFWD(bytes(16330))) == CRYPTO
    key = generate_key_pair(Algorithm.X25519).public
    inner = ForwardedTransmission(os.urandom(24), 17, key, bytes(16242))
    assert await proxy.rfwd(inner) == CRYPTO
    low_order = key[:12] + bytes(32)
    assert await proxy.rfwd(ForwardedTransmission(b"", 17, low_order, bytes(16242))) == CRYPTO
    assert await proxy.peer.ask(smp.PING()) == smp.PONG()


async def test_contents_that_do_not_parse(small_world: World) -> None:
    proxy = Proxy(await small_world.connect())
    nonce = os.urandom(24)
    for plain in (b"", b"\x04co", b"\0\0\x11\x01x"):
        sealed = box_with(proxy.key, nonce, plain)
        assert await proxy.peer.ask(smp.RFWD(sealed), corr_id=nonce) == SYNTAX


async def test_without_session_keys(small_world: World) -> None:
    legacy = await small_world.connect(6, use_alpn=False)
    assert await legacy.ask(smp.RFWD(b"box")) == NO_KEY
