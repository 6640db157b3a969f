"""Connections by short links, over real routers."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.agent.connections import links
from heliograph.agent.connections.link_data import ContactData, seal_contact, seal_contact_data
from heliograph.agent.connections.short_link import LinkKind, ShortLink, shortened
from heliograph.agent.errors import BadInvitation, LinkUsed, RouterError
from heliograph.agent.operations import ConnectionOperations, CreatedQueue
from heliograph.agent.routing.modes import ProxyMode, RoutingSettings
from heliograph.crypto.keys import generate_key_pair
from heliograph.transport.client import Client
from heliograph.wire import smp
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import QueueLink, QueueMode, QueueReqData
from heliograph.wire.smp.links import sender_id_of
from tests.agent.places import BOTH_STORES
from tests.agent.support import TIMEOUT, Router, User, settings, users

pytestmark = BOTH_STORES


async def joined(alice: User, bob: User, link: str, at_alice: str) -> str:
    at_bob = await bob.agent.join_connection(link)
    async with asyncio.timeout(TIMEOUT):
        await alice.agent.wait_ready(at_alice)
        await bob.agent.wait_ready(at_bob)
    return at_bob


async def test_a_short_link_is_made_and_joined_once(tmp_path: Path, router: Router) -> None:
    async with users(tmp_path, "alice", "bob", "carol") as [alice, bob, carol]:
        at_alice, invitation = await alice.agent.create_connection(router.address)
        link = invitation.link
        assert link is not None
        assert link.startswith("https://127.0.0.1/i#")
        assert len(link) < len(str(invitation))
        at_bob = await joined(alice, bob, link, at_alice)
        await bob.agent.send(at_bob, b"hello")
        assert await alice.receive() == [b"hello"]
        await alice.agent.send(at_alice, b"hi")
        assert await bob.receive() == [b"hi"]
        with pytest.raises(LinkUsed, match="ask for a new one"):
            await carol.agent.join_connection(link)
        assert await carol.agent.connections() == []
        with pytest.raises(LinkUsed):
            await bob.agent.join_connection(link)


async def test_the_full_link_is_still_accepted(tmp_path: Path, router: Router) -> None:
    async with users(tmp_path, "alice", "bob") as [alice, bob]:
        at_alice, invitation = await alice.agent.create_connection(router.address)
        at_bob = await joined(alice, bob, str(invitation), at_alice)
        await bob.agent.send(at_bob, b"hello")
        assert await alice.receive() == [b"hello"]


@pytest.mark.parametrize("version", [8, 14])
async def test_a_router_without_short_links(tmp_path: Path, router: Router, version: int) -> None:
    async with users(tmp_path, "alice", settings=settings(version)) as [alice]:
        _, invitation = await alice.agent.create_connection(router.address)
        assert invitation.link is None


async def test_joining_goes_on_with_the_same_key_after_a_failure(
    tmp_path: Path, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is secured by then: another key would find the link used."""

    async def fail(*arguments: object, **options: object) -> CreatedQueue:
        raise RouterError("no queue of our own", temporary=True)

    async with users(tmp_path, "alice", "bob") as [alice, bob]:
        at_alice, invitation = await alice.agent.create_connection(router.address)
        assert invitation.link is not None
        with monkeypatch.context() as patch:
            patch.setattr(ConnectionOperations, "join", fail)
            with pytest.raises(RouterError, match="no queue"):
                await bob.agent.join_connection(invitation.link)
        await bob.restart()
        await joined(alice, bob, invitation.link, at_alice)
        store, link = bob.agent.store, ShortLink.parse(invitation.link)
        place = link.address.fingerprint, link.link_id
        left = await store.write(lambda tx: links.key_for(tx, store.vault, *place, b"fresh"))
        assert left == b"fresh", "the key is forgotten once it is used"


async def test_a_link_with_another_key_does_not_open(tmp_path: Path, router: Router) -> None:
    async with users(tmp_path, "alice", "bob") as [alice, bob]:
        _, invitation = await alice.agent.create_connection(router.address)
        assert invitation.link is not None
        link = ShortLink.parse(invitation.link)
        forged = str(ShortLink(link.address, link.link_id, bytes(32)))
        with pytest.raises(BadInvitation, match="does not belong"):
            await bob.agent.join_connection(forged)
        assert await bob.agent.connections() == []


async def test_a_contact_link_is_read(tmp_path: Path, router: Router) -> None:
    """Each time anew: its owners change the data, and delete the link."""
    root, corr_id = generate_key_pair(Algorithm.ED25519), os.urandom(24)
    data = ContactData(b"u" * 13_000)
    sealed = seal_contact(b"a connection request", root, data)
    link = ShortLink.contact(router.address, sealed.link_key, LinkKind.GROUP)
    at_router = QueueLink(link.link_id, sender_id_of(corr_id), sealed.fixed, sealed.user)
    recipient, secret = (generate_key_pair(Algorithm.X25519) for _ in range(2))
    new = smp.NEW(
        recipient.public, secret.public, queue_data=QueueReqData(QueueMode.CONTACT, at_router)
    )
    own = replace(settings(), proxy=RoutingSettings(ProxyMode.ALWAYS, servers=(router.address,)))
    async with (
        users(tmp_path, "bob") as [bob],
        users(tmp_path, "carol", settings=own) as [carol],
        Client.connect(router.address) as owner,
    ):
        ids = await owner.request(new, b"", recipient.private, corr_id=corr_id)
        for text in (str(link), link.app_text):
            contact = await bob.agent.read_link(text)
            assert (contact.root, contact.request) == (root.public, b"a connection request")
            assert contact.data == data
        with pytest.raises(BadInvitation, match="not joined"):
            await bob.agent.join_connection(str(link))
        short = str(shortened(link, [router.address]))
        with pytest.raises(BadInvitation, match="unknown router"):
            await bob.agent.read_link(short)
        assert await carol.agent.read_link(short) == contact, "of her router, and through a proxy"
        user = seal_contact_data(link.link_key, root, ContactData(b"changed"))
        lset = smp.LSET(link.link_id, sealed.fixed, user)
        await owner.request(lset, ids.rcv_id, recipient.private)
        assert (await bob.agent.read_link(str(link))).data.user_data == b"changed"
        await owner.request(smp.LDEL(), ids.rcv_id, recipient.private)
        with pytest.raises(RouterError, match="no such link"):
            await bob.agent.read_link(str(link))
        with pytest.raises(BadInvitation, match="by joining it"):
            await bob.agent.read_link(str(replace(link, kind=LinkKind.INVITATION)))
