"""Every state of a queue against every command: what is answered, and that nothing else happens."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from heliograph.smp.settings import Rules
from heliograph.transport.client import ClientRequest
from heliograph.wire import errors, smp
from heliograph.wire.errors import BlockingReason, ClientNotice
from heliograph.wire.smp.fields import MsgFlags, QueueMode
from tests.smp.support import (
    AUTH,
    NO_MSG,
    OK,
    QUOTA,
    Peer,
    Queue,
    World,
    create,
    keys,
    with_settings,
)
from tests.smp.test_blocking import block

SOK = smp.SOK()
SPAM = errors.BLOCKED(BlockingReason.SPAM, ClientNotice(60))
BLOCKED = smp.ERR(SPAM)
SENDER, OTHER = keys(), keys()


async def _none(peer: Peer, queue: Queue) -> None:
    queue.ids = smp.IDS(b"r" * 24, b"s" * 24, queue.ids.dh_key)


async def _new(peer: Peer, queue: Queue) -> None:
    return None


async def _keyed(peer: Peer, queue: Queue) -> None:
    assert await queue.by_recipient(peer, smp.KEY(SENDER.public)) == OK


async def _skeyed(peer: Peer, queue: Queue) -> None:
    assert await peer.ask(smp.SKEY(SENDER.public), queue.snd_id, SENDER.private) == OK


async def _off(peer: Peer, queue: Queue) -> None:
    assert await queue.by_recipient(peer, smp.OFF()) == OK


async def _deleted(peer: Peer, queue: Queue) -> None:
    assert await queue.by_recipient(peer, smp.DEL()) == OK


async def _full(peer: Peer, queue: Queue) -> None:
    answers = await peer.ask_many([queue.sending(b"%d" % n) for n in range(3)])
    assert answers == [OK, OK, QUOTA]


async def _notified(peer: Peer, queue: Queue) -> None:
    await queue.nkey(peer)


async def _linked(peer: Peer, queue: Queue) -> None:
    data = smp.LSET(queue.rcv_id[::-1], b"data of", b"this queue")
    assert await queue.by_recipient(peer, data) == OK


async def _linked_and_keyed(peer: Peer, queue: Queue) -> None:
    await _linked(peer, queue)
    await _keyed(peer, queue)


STATES: dict[str, Callable[[Peer, Queue], Awaitable[None]]] = {
    "none": _none,
    "new": _new,
    "keyed": _keyed,
    "skeyed": _skeyed,
    "off": _off,
    "deleted": _deleted,
    "full": _full,
    "notified": _notified,
    "linked": _linked,
    "linked and keyed": _linked_and_keyed,
    "contact": _new,
    "linked contact": _linked,
    "blocked": _new,
    "blocked and linked": _linked,
}


def _recipient(command: Any) -> Callable[[Queue], ClientRequest[Any]]:
    return lambda queue: ClientRequest(command, queue.rcv_id, queue.recipient.private)


def _sender(command: Any, key: bytes | None) -> Callable[[Queue], ClientRequest[Any]]:
    return lambda queue: ClientRequest(command, queue.snd_id, key)


def _link(command: Any, key: bytes | None) -> Callable[[Queue], ClientRequest[Any]]:
    """By the link that the state "linked" gives each queue."""
    return lambda queue: ClientRequest(command, queue.rcv_id[::-1], key)


def _nsub(queue: Queue) -> ClientRequest[Any]:
    if queue.notifier is None:
        return ClientRequest(smp.NSUB(), b"n" * 24, OTHER.private)
    return queue.nsubscribing()


SEND = smp.SEND(MsgFlags(True), b"hello")
COMMANDS: dict[str, Callable[[Queue], ClientRequest[Any]]] = {
    "SUB": _recipient(smp.SUB()),
    "GET": _recipient(smp.GET()),
    "ACK": _recipient(smp.ACK(b"")),
    "KEY": _recipient(smp.KEY(SENDER.public)),
    "KEY other": _recipient(smp.KEY(OTHER.public)),
    "NKEY": _recipient(smp.NKEY(OTHER.public, OTHER.public)),
    "NDEL": _recipient(smp.NDEL()),
    "OFF": _recipient(smp.OFF()),
    "QUE": _recipient(smp.QUE()),
    "DEL": _recipient(smp.DEL()),
    "SKEY": _sender(smp.SKEY(SENDER.public), SENDER.private),
    "SKEY other": _sender(smp.SKEY(OTHER.public), OTHER.private),
    "RKEY": _recipient(smp.RKEY((OTHER.public,))),
    "LSET": _recipient(smp.LSET(b"l" * 24, b"fixed", b"user")),
    "LDEL": _recipient(smp.LDEL()),
    "LKEY": _link(smp.LKEY(SENDER.public), SENDER.private),
    "LKEY other": _link(smp.LKEY(OTHER.public), OTHER.private),
    "LGET": _link(smp.LGET(), None),
    "SEND": _sender(SEND, None),
    "SEND signed": _sender(SEND, SENDER.private),
    "SEND signed by another": _sender(SEND, OTHER.private),
    "NSUB": _nsub,
}

ALL_AUTH = dict.fromkeys(COMMANDS, AUTH)
FOR_NEW: dict[str, Any] = {
    "SUB": SOK,
    "GET": OK,
    "ACK": NO_MSG,
    "KEY": OK,
    "KEY other": OK,
    "NKEY": smp.NID,
    "NDEL": OK,
    "OFF": OK,
    "QUE": smp.INFO,
    "DEL": OK,
    "SKEY": OK,
    "SKEY other": OK,
    "RKEY": AUTH,
    "LSET": OK,
    "LDEL": OK,
    "LKEY": AUTH,
    "LKEY other": AUTH,
    "LGET": AUTH,
    "SEND": OK,
    "SEND signed": AUTH,
    "SEND signed by another": AUTH,
    "NSUB": AUTH,
}
FOR_SECURED = FOR_NEW | {
    "KEY other": AUTH,
    "SKEY other": AUTH,
    "LSET": AUTH,
    "SEND": AUTH,
    "SEND signed": OK,
}
FOR_CONTACT = FOR_NEW | {"SKEY": AUTH, "SKEY other": AUTH, "RKEY": OK}
ALL_BLOCKED = dict.fromkeys(COMMANDS, BLOCKED) | {
    "OFF": OK,
    "DEL": OK,
    "SEND signed": AUTH,
    "SEND signed by another": AUTH,
    "LKEY": AUTH,
    "LKEY other": AUTH,
    "LGET": AUTH,
    "NSUB": AUTH,
}
EXPECTED: dict[str, dict[str, Any]] = {
    "none": ALL_AUTH,
    "new": FOR_NEW,
    "keyed": FOR_SECURED,
    "skeyed": FOR_SECURED,
    "off": FOR_NEW | {"SEND": AUTH},
    "deleted": ALL_AUTH,
    "full": FOR_NEW | {"GET": smp.MSG, "SEND": QUOTA},
    "notified": FOR_NEW | {"NSUB": SOK},
    "linked": FOR_NEW | {"LSET": AUTH, "LKEY": smp.LNK, "LKEY other": smp.LNK},
    "linked and keyed": FOR_SECURED | {"LKEY": smp.LNK},
    "contact": FOR_CONTACT,
    "linked contact": FOR_CONTACT | {"LSET": AUTH, "LGET": smp.LNK},
    "blocked": ALL_BLOCKED,
    "blocked and linked": ALL_BLOCKED | {"LKEY": BLOCKED, "LKEY other": BLOCKED},
}


@pytest.mark.parametrize("settings", [with_settings(rules=Rules(quota=2))])
@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "loaded"])
@pytest.mark.parametrize("state", STATES)
async def test_every_command_in_every_state(
    small_world: World, state: str, in_memory: bool
) -> None:
    """Each command on a queue of its own, and what it led to is still so after a restart."""
    alice = await small_world.connect()
    queues = {}
    for name in COMMANDS:
        mode = QueueMode.CONTACT if "contact" in state else QueueMode.MESSAGING
        queues[name] = queue = await create(alice, mode=mode, subscribe=False)
        await STATES[state](alice, queue)
        if "blocked" in state:
            await block(small_world, queue.snd_id, SPAM)
    if not in_memory:
        small_world.router.queues.clear()
    bob = await small_world.connect()
    requests = [command(queues[name]) for name, command in COMMANDS.items()]
    answers = dict(zip(COMMANDS, await bob.ask_many(requests), strict=True))
    for name, expected in EXPECTED[state].items():
        answer = answers[name]
        is_right = (
            isinstance(answer, expected) if isinstance(expected, type) else answer == expected
        )
        assert is_right, (state, name, answer)
    counts = await small_world.router.store.counts()
    await small_world.restart()
    assert await small_world.router.store.counts() == counts


def test_the_table_is_complete() -> None:
    assert set(EXPECTED) == set(STATES)
    assert all(set(row) == set(COMMANDS) for row in EXPECTED.values())
    named = {name.split()[0] for name in COMMANDS}
    without_queue = {"NEW", "PING", "SUBS", "NSUBS", "PRXY", "PFWD", "RFWD"}
    assert named | without_queue == {command.__name__ for command in smp.SmpCommand.__args__}
