"""Every version of the messaging protocol, in every kind of session, on real sockets.

What each version answers is asserted to the letter: it is a promise of the handshake.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.transport.client import Client
from heliograph.transport.dial import ClientConfig
from heliograph.wire import smp
from heliograph.wire.errors import BLOCKED, BlockingReason, ClientNotice, ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import NewNtfCreds, QueueMode, QueueReqData, SubscriptionMode
from heliograph.wire.smp.ids import ids_hash
from heliograph.wire.versions import VersionRange
from tests.interop.blocks import Handle, a_key, sending
from tests.smp.support import AT_ONCE, AUTH, OK, Peer, Queue, World, a_world, new_store, service

ED25519, ED448, X25519 = Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519
SERVICES_SINCE, LATEST = 16, 19
LONGEST = {6: 16088, 7: 16088, 8: 16064, 9: 16064, 10: 16064}
NOTICE = BLOCKED(BlockingReason.CONTENT, ClientNotice(86400))

KINDS: dict[str, tuple[dict[str, Any], Algorithm, range]] = {
    "signatures": ({"encrypt_blocks": False}, ED448, range(6, 20)),
    "authenticators": ({}, X25519, range(7, 20)),
    "from a proxy": ({"is_proxy": True}, X25519, range(14, 20)),
    "without ALPN": ({"use_alpn": False}, ED25519, range(6, 7)),
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(new_store("sqlite", tmp_path), AT_ONCE) as running:
        yield running


async def connect(world: World, version: int, **options: Any) -> Handle:
    credentials = options.pop("service", None)
    config = ClientConfig(versions=VersionRange(6, version), **options)
    peer = Peer()
    peer.client = await Client.connect(
        world.address, config, on_push=peer.received, service=credentials
    )
    assert peer.version == version
    world.peers.append(peer)
    return Handle.of(peer)


async def create(h: Handle, version: int, algorithm: Algorithm) -> tuple[Queue, bytes, bytes]:
    """A queue with its notifier ID and key: by NEW if the version can, else by NKEY."""
    recipient, secret = a_key(algorithm), a_key(X25519)
    notifier, ntf_secret = a_key(algorithm), a_key(X25519)
    at_once = NewNtfCreds(notifier.public, ntf_secret.public) if version >= 17 else None
    data = QueueReqData(QueueMode.MESSAGING) if version >= 9 else None
    command = smp.NEW(
        recipient.public, secret.public, None, SubscriptionMode.SUBSCRIBE, data, at_once
    )
    ids = await h.ask(_corr_id(), command, b"", recipient.private)
    assert isinstance(ids, smp.IDS), ids
    assert (ids.mode, ids.link_id, ids.service_id) == (data and data.mode, None, None)
    assert dh(ids.dh_key, secret.private)
    queue = Queue(recipient, secret, ids)
    if at_once is not None:
        assert ids.ntf_creds is not None
        return queue, ids.ntf_creds.notifier_id, notifier.private
    assert ids.ntf_creds is None
    nkey = smp.NKEY(notifier.public, ntf_secret.public)
    nid = await h.ask(_corr_id(), nkey, queue.rcv_id, recipient.private)
    return queue, nid.notifier_id, notifier.private


def _corr_id() -> bytes:
    return generate_key_pair(X25519).public[-24:]


def cases() -> list[Any]:
    return [
        pytest.param(version, kind, id=f"{version} {kind}")
        for kind, (_, _, versions) in KINDS.items()
        for version in versions
    ]


@pytest.mark.parametrize(("version", "kind"), cases())
async def test_session(world: World, version: int, kind: str) -> None:
    options, algorithm, _ = KINDS[kind]
    sok = smp.SOK() if version >= SERVICES_SINCE else OK
    deleted = smp.DELD() if version >= 10 else smp.END()
    r, s, n = [await connect(world, version, **options) for _ in range(3)]
    queue, nid, ntf_key = await create(r, version, algorithm)
    rid, sid, key = queue.rcv_id, queue.snd_id, queue.recipient.private
    sender = a_key(algorithm)

    async def by_recipient(command: Any, handle: Handle = r) -> Any:
        return await handle.ask(_corr_id(), command, rid, key)

    async def send(body: bytes, *, notify: bool = False) -> Any:
        return await s.ask(_corr_id(), sending(body, notify=notify), sid, sender.private)

    assert await n.ask(_corr_id(), smp.NSUB(), nid, ntf_key) == sok
    if version >= 9:
        assert await s.ask(_corr_id(), smp.SKEY(sender.public), sid, sender.private) == OK
    else:
        assert await by_recipient(smp.KEY(sender.public)) == OK
    assert await s.ask(_corr_id(), sending(b"unsigned"), sid) == AUTH

    longest = LONGEST.get(version, 16048)
    assert await send(b"-" * (longest + 1)) == smp.ERR(ErrorCode.LARGE_MSG)
    assert await send(b"-" * longest, notify=True) == OK
    message = await r.pushed(rid)
    assert queue.body(message) == b"-" * longest
    assert isinstance(await n.pushed(nid), smp.NMSG)

    again = await connect(world, version, **options)
    again.send(_corr_id(), smp.SUB(), rid, key)
    answer, push = await again.block()
    assert (answer.message, push.message) == (sok, message)
    assert await r.pushed(rid) == smp.END()
    assert await by_recipient(smp.ACK(message.msg_id), again) == OK

    found = await world.router.operator.find(sid)
    assert found is not None
    await world.router.operator.block(found, NOTICE)
    refused = smp.ERR(_as_seen_in(version))
    assert await again.pushed(rid) == refused
    assert await by_recipient(smp.SUB(), again) == refused
    assert await send(b"blocked") == refused
    await world.router.operator.unblock(found)

    assert await by_recipient(smp.NDEL(), again) == OK
    assert await n.pushed(nid) == deleted
    assert await by_recipient(smp.DEL()) == OK
    assert await again.pushed(rid) == deleted
    assert await r.ask(_corr_id(), smp.PING()) == smp.PONG()
    assert r.is_quiet
    assert again.is_quiet


def _as_seen_in(version: int) -> Any:
    if version < 12:
        return ErrorCode.AUTH
    return NOTICE if version >= 18 else BLOCKED(NOTICE.reason)


@pytest.mark.parametrize("version", range(SERVICES_SINCE, LATEST + 1))
async def test_session_of_a_service(world: World, version: int) -> None:
    r, s = await connect(world, version), await connect(world, version)
    queue, nid, ntf_key = await create(r, version, X25519)
    first, second = [await connect(world, version, service=service()) for _ in range(2)]
    own = second.peer.client.established.service
    assert own is not None
    assert await first.ask(_corr_id(), smp.NSUB(), nid, ntf_key) == smp.SOK(own.service_id)
    hashed = version >= LATEST
    nsubs = smp.NSUBS(1, ids_hash([nid])) if hashed else smp.NSUBS()
    soks = await second.ask(_corr_id(), nsubs, own.service_id, own.key)
    assert soks == smp.SOKS(1, ids_hash([nid]) if hashed else bytes(16))
    ended = await first.pushed(own.service_id)
    assert ended == smp.ENDS(1, ids_hash([nid]) if hashed else bytes(16))
    assert await s.ask(_corr_id(), sending(b"hello", notify=True), queue.snd_id) == OK
    assert isinstance(await second.pushed(nid), smp.NMSG)
    assert first.is_quiet
