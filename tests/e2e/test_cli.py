"""`heliograph device`, as a user types it: every command a process, over routers that are too."""

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.support import IMPATIENT, WatchProcess, World, device
from tests.faults.processes import Process, init as init_router
from tests.waiting import eventually


async def init(world: World, directory: Path, name: str, *more: str) -> str:
    routers = ("--smp", world.smp_address, "--ntf", world.ntf_address)
    return await device("init", directory, "--name", name, *routers, *more)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_two_phones(world: World, tmp_path: Path) -> None:
    alice, bob = tmp_path / "alice", tmp_path / "bob"
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("correct horse\n")
    secret = ("--passphrase-file", str(passphrase))
    assert "Its keys and messages are encrypted" in await init(world, alice, "Alice", *secret)
    assert "not encrypted" in await init(world, bob, "Bob")
    assert "has a phone already" in await device(
        "init", bob, "--name", "B", "--smp", world.smp_address, "--ntf", world.ntf_address, ok=False
    )

    registered = await device("register", alice, "--apns", world.apns.control, *secret)
    assert registered == "The token is ACTIVE; notifications are instant.\n"
    link = (await device("connect", alice, *secret)).strip()
    assert link.startswith("https://127.0.0.1/i#")
    joined = await device("connect", bob, link, "--name", "Alice")
    assert joined == "Joined as Alice; messages can be sent.\n"

    watch = WatchProcess(alice, *secret)
    await watch.start()
    connected = await watch.next()
    assert (connected["title"], connected["badge"]) == ("Bob is connected!", 0)
    assert await device("send", bob, "Alice", "Meet at #noon#.") == "Sent.\n"
    shown = await watch.next()
    assert shown == {
        "title": "Bob",
        "body": "Meet at ....",
        "badge": 1,
        "category": "NTF_CAT_MESSAGE_RECEIVED",
        "thread": "@1",
    }
    assert "Notifications show: hidden." in await device(
        "mode", alice, "--preview", "hidden", *secret
    )
    await device("send", bob, "Alice", "Where are you?")
    shown = await watch.next()
    assert (shown["title"], shown["body"], shown["badge"]) == ("SimpleX", "New message", 2)
    assert await watch.stop(signal.SIGINT) == 0

    status = json.loads(await device("status", alice, "--json", *secret))
    assert status["contacts"] == ["Bob (connected)"]
    assert (status["token"], status["mode"], status["badge"]) == ("ACTIVE", "instant", 2)
    assert not any(b"noon" in file.read_bytes() for file in alice.iterdir() if file.is_file())
    assert (status["subscribed"], status["provider"]) == (1, "apns_test")
    assert "token          ACTIVE" in await device("status", alice, *secret)
    assert "the token is deleted" in await device("mode", alice, "off", *secret)
    off = json.loads(await device("status", alice, "--json", *secret))
    assert (off["token"], off["mode"]) == ("none", "off")
    assert "passphrase" in await device("status", alice, ok=False)
    assert "passphrase" in await device("watch", alice, "--app", "active", ok=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_token_of_a_real_device(world: World, tmp_path: Path) -> None:
    """A terminal cannot have Apple's token: it may name one, and learns where its pushes go."""
    phone = tmp_path / "phone"
    await init(world, phone, "P")
    named = await device("register", phone, "--token", f"apns_test {'00ff' * 16}")
    assert "REGISTERED" in named
    assert "heliograph device verify --push" in named
    assert "a terminal cannot see them" in await device("watch", phone, ok=False)
    record = world.apns.record
    await eventually(lambda: is_recorded(record))
    [body] = accepted_bodies(record)
    verified = await device("verify", phone, "--push", body)
    assert verified == "The token is ACTIVE.\n"


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_an_active_app_and_a_contact_that_must_be_accepted(
    world: World, tmp_path: Path
) -> None:
    alice, bob = tmp_path / "alice", tmp_path / "bob"
    await init(world, alice, "Alice")
    await init(world, bob, "Bob")
    await device("register", alice, "--apns", world.apns.control)
    link = (await device("connect", alice, "--ask")).strip()
    await device("connect", bob, link, "--name", "Alice")
    watch = WatchProcess(alice, "--app", "active", "--count", "1")
    await watch.start()
    shown = await watch.next()
    assert shown["title"] == "Bob wants to connect!"
    assert shown["category"] == "NTF_CAT_CONTACT_REQUEST"
    assert await watch.stop() == 0
    accepted = await device("connect", alice, "--accept", "Bob")
    assert accepted == "Accepted Bob; messages can be sent.\n"
    again = await device("connect", alice, "--accept", "Bob", ok=False)
    assert "has no pending contact request" in again
    assert "Bob (connected)" in await device("status", alice)
    assert await device("send", alice, "Bob", "welcome") == "Sent.\n"


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_app_and_extension_are_two_processes(world: World, tmp_path: Path) -> None:
    """The app takes the database from the extension, shows what arrives, and gives it back."""
    alice, bob = tmp_path / "alice", tmp_path / "bob"
    await init(world, alice, "Alice")
    await init(world, bob, "Bob")
    await device("register", alice, "--apns", world.apns.control)
    link = (await device("connect", alice)).strip()
    await device("connect", bob, link, "--name", "Alice")
    extension, app = WatchProcess(alice), WatchProcess(alice, "--app", "active")
    try:
        await extension.start()
        assert (await extension.next())["title"] == "Bob is connected!"
        await app.start()
        await device("send", bob, "Alice", "to the app")
        assert (await app.next())["body"] == "to the app"
        assert await app.stop() == 0
        await device("send", bob, "Alice", "to the extension")
        assert (await extension.next())["body"] == "to the extension"
        assert await extension.stop() == 0
    finally:
        await app.kill()
        await extension.kill()


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_router_that_is_down_and_a_link_that_was_used(world: World, tmp_path: Path) -> None:
    alice, bob, carol = tmp_path / "alice", tmp_path / "bob", tmp_path / "carol"
    for directory in (alice, bob, carol):
        await init(world, directory, directory.name)
    wrong = await device("register", alice, "--apns", world.apns.url, ok=False)
    assert "prints after the word control" in wrong
    await device("register", alice, "--apns", world.apns.control)
    link = (await device("connect", alice, "--name", "bob", "--full")).strip()
    await device("connect", bob, link, "--name", "alice")
    refused = "refused: this link was used already, or the contact deleted the chat"
    assert refused in await device("connect", carol, link, "--name", "alice", ok=False)
    assert refused in await device("send", carol, "alice", "hello?", ok=False)
    assert "alice (refused)" in await device("status", carol)

    await world.ntf.kill()
    down = await device("mode", alice, "periodic", command=IMPATIENT)
    assert "Notifications will be periodic once the router can be reached" in down
    assert json.loads(await device("status", alice, "--json"))["mode"] == "periodic"
    await world.ntf.start()
    assert "the token is ACTIVE" in await device("mode", alice, "instant")
    assert "the token is deleted" in await device("mode", alice, "off")
    watch = WatchProcess(alice)
    await watch.start()
    try:
        assert "instant; the token is ACTIVE" in await device("mode", alice, "instant")
        await device("send", bob, "alice", "still there")
        await watch.until("bob", "still there")
        assert await watch.stop() == 0
    finally:
        await watch.kill()
    assert json.loads(await device("status", alice, "--json"))["subscribed"] == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_link_of_a_router_that_is_down_and_moves(world: World, tmp_path: Path) -> None:
    """What cannot be sent yet is not said to be; it leaves once the router is found again."""
    alice, bob, elsewhere = tmp_path / "alice", tmp_path / "bob", tmp_path / "elsewhere"
    await init_router("smp", elsewhere)
    router = Process(elsewhere, "smp", "start")
    try:
        await router.start()
        address, port = router.ready, router.ready.rsplit(":", 1)[1]
        routers = ("--smp", address, "--ntf", world.ntf_address)
        await device("init", alice, "--name", "Alice", *routers)
        await init(world, bob, "Bob")
        link = (await device("connect", alice, "--name", "Bob", "--full")).strip()
        await router.kill()
        joined = await device("connect", bob, link, "--name", "Alice", command=IMPATIENT)
        assert "messages can be sent" not in joined
        assert joined.startswith("Joined as Alice. The contact's router does not answer yet")
        sent = await device("send", bob, "Alice", "hello", command=IMPATIENT)
        assert sent.startswith("Stored: ")

        router.options = ("--host", "127.0.0.2", "--port", port)
        await router.start()
        wrong = address.replace("smp://", "ntf://")
        assert "knows no router of that identity" in await device("move", bob, wrong, ok=False)
        for directory in (alice, bob):
            moved = await device("move", directory, router.ready)
            assert moved == "Done: this phone uses the router at its new address.\n"
        await device("register", alice, "--apns", world.apns.control)
        watch = WatchProcess(alice, "--app", "active")
        await watch.start()
        try:
            assert (await watch.next())["title"] == "Bob is connected!"
            await eventually(lambda: has_unread(alice))
        finally:
            await watch.kill()
    finally:
        await router.kill()


async def has_unread(directory: Path) -> bool:
    unread: int = json.loads(await device("status", directory, "--json"))["badge"]
    return unread == 1


async def is_recorded(record: Path) -> bool:
    return len(accepted_bodies(record)) > 0


def accepted_bodies(record: Path) -> list[str]:
    lines = record.read_text().splitlines() if record.exists() else []
    return [entry["body"] for entry in map(json.loads, lines) if entry["accepted"]]
