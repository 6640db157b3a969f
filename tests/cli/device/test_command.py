"""`heliograph device`: what needs no router. What does is in tests/e2e."""

import asyncio
import json
import shutil
import socket
from pathlib import Path

import pytest

from heliograph.cli.device.screen import draw, plain
from heliograph.cli.main import main
from heliograph.device.chats.content import Category, Content, build
from heliograph.device.states import PreviewMode
from heliograph.device.store import DeviceStore
from heliograph.phone import sources as phone_sources
from heliograph.phone.phone import Phone
from tests.db.postgres import shared_postgres
from tests.device.support import message

SMP = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
NTF = "ntf://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@ntf.example.com"
ROUTERS = ("--smp", SMP, "--ntf", NTF)

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("phones") / "alice"
    assert main(["device", "init", "--dir", str(directory), "--name", "Alice", *ROUTERS]) == 0
    return directory


@pytest.fixture
def phone(template: Path, tmp_path: Path) -> Path:
    """One that a test may change."""
    return Path(shutil.copytree(template, tmp_path / "alice"))


def fails(capsys: Capture, command: str, directory: Path, *arguments: str) -> str:
    assert main(["device", command, "--dir", str(directory), *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"heliograph device {command}: ")
    assert "Traceback" not in captured.err
    return captured.err


def test_init_says_what_is_next(tmp_path: Path, capsys: Capture) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    directory = tmp_path / "bob"
    arguments = ("--dir", str(directory), "--passphrase-file", str(secret))
    assert main(["device", "init", "--name", "Bob\x1b[31m", *arguments, *ROUTERS]) == 0
    out = capsys.readouterr().out
    assert "heliograph device register" in out
    assert "Its keys and messages are encrypted" in out
    assert "\x1b" not in out
    assert "passphrase" in fails(capsys, "status", directory)


def test_a_store_in_postgresql(tmp_path: Path, capsys: Capture) -> None:
    url = shared_postgres().new_url()
    arguments = ("--name", "Alice", *ROUTERS, "--store", url)
    assert main(["device", "init", "--dir", str(tmp_path / "alice"), *arguments]) == 0
    assert main(["device", "status", "--dir", str(tmp_path / "alice")]) == 0
    capsys.readouterr()
    error = fails(capsys, "init", tmp_path / "bob", *arguments)
    assert "belongs to another agent" in error
    assert not (tmp_path / "bob").exists()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite:///phone.db", "postgresql://"),
        ("phone.db", "a store URL is"),
        ("postgresql://alice:hunter2@127.0.0.1:1/phones", "refused"),
    ],
)
def test_a_store_that_cannot_be(tmp_path: Path, capsys: Capture, url: str, reason: str) -> None:
    error = fails(capsys, "init", tmp_path / "alice", "--name", "Alice", *ROUTERS, "--store", url)
    assert reason in error
    assert "hunter2" not in error
    assert not (tmp_path / "alice").exists()


def test_status(phone: Path, capsys: Capture) -> None:
    assert main(["device", "status", "--dir", str(phone)]) == 0
    assert "token          none" in capsys.readouterr().out
    assert main(["device", "status", "--dir", str(phone), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status == {
        "name": "Alice",
        "token": "none",
        "profiles": ["Alice"],
        "mode": "off",
        "preview": "message",
        "app": "suspended",
        "badge": 0,
        "subscribed": 0,
        "contacts": [],
        "smp": [SMP],
        "ntf": [NTF],
    }


def test_preview(phone: Path, capsys: Capture) -> None:
    for preview in ("contact", "message"):
        assert main(["device", "mode", "--dir", str(phone), "--preview", preview]) == 0
        assert capsys.readouterr().out == f"Notifications show: {preview}.\n"


def test_proxy(phone: Path, capsys: Capture) -> None:
    for arguments, said in (
        ([], "Proxy: unknown; fallback: allow-protected.\n"),
        (["always"], "Proxy: always; fallback: allow-protected.\n"),
        (["--fallback", "prohibit"], "Proxy: always; fallback: prohibit.\n"),
    ):
        assert main(["device", "proxy", "--dir", str(phone), *arguments]) == 0
        assert capsys.readouterr().out == said


def test_profiles(phone: Path, tmp_path: Path, capsys: Capture) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")

    def user(*arguments: str) -> str:
        assert main(["device", "user", "--dir", str(phone), *arguments]) == 0
        return capsys.readouterr().out

    assert user("list") == "* Alice (0 unread)\n"
    assert user("create", "Work") == "* Alice (0 unread)\n  Work (0 unread)\n"
    assert user("switch", "Work") == "  Alice (0 unread)\n* Work (0 unread)\n"
    assert user("hide", "Alice", "--password-file", str(secret)) == "* Work (0 unread)\n"
    assert "there is no profile 'Alice'" in fails(capsys, "status", phone, "--user", "Alice")
    opened = ("--user", "Alice", "--user-password-file", str(secret))
    assert main(["device", "status", "--dir", str(phone), *opened]) == 0
    assert "name           Alice" in capsys.readouterr().out
    assert "Alice" in user("unhide", "Alice", "--password-file", str(secret))
    assert user("delete", "Work") == "* Alice (0 unread)\n"
    assert "give the profile's NAME" in fails(capsys, "user", phone, "create")
    assert "--password-file" in fails(capsys, "user", phone, "hide", "Alice")


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("watch", [], "run `heliograph device register` first"),
        ("verify", [], "run `heliograph device register` first"),
        ("verify", ["--push", "{}"], "no notification data"),
        ("verify", ["--push", '{"checkMessages": true}'], "has no code"),
        ("send", ["Nobody", "hi"], "there is no contact 'Nobody'"),
        ("connect", ["https://example.com"], "not an invitation"),
        ("register", ["--apns", "127.0.0.1:80"], "heliograph sim apns"),
        ("register", ["--apns", "https://127.0.0.1:9"], "not the address that routers push to"),
        ("register", ["--webpush", "127.0.0.1:http"], "HOST:PORT"),
        ("register", ["--webpush", "127.0.0.1:65536"], "HOST:PORT"),
        ("register", ["--token", "apns_prod xyz"], "hex digits"),
        ("mode", [], "give a mode"),
        ("mode", ["instant"], "register one first"),
        ("init", ["--name", "A", *ROUTERS], "has a phone already"),
    ],
)
def test_what_is_wrong_is_said(
    phone: Path, capsys: Capture, command: str, arguments: list[str], words: str
) -> None:
    assert words in fails(capsys, command, phone, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--name", "A", "--smp", NTF, "--ntf", NTF], "is not an smp:// address"),
        (["--name", "A", "--smp", SMP, "--ntf", SMP], "is not an ntf:// address"),
        (["--name", "", *ROUTERS], "a name has 1 to 100 characters"),
        (["--name", "A", "--smp", "smp://x", "--ntf", NTF], "address"),
        (["--name", "A", "--passphrase-file", "/nowhere/at/all", *ROUTERS], "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_made(
    tmp_path: Path, capsys: Capture, arguments: list[str], words: str
) -> None:
    assert words in fails(capsys, "init", tmp_path / "new", *arguments)
    assert not (tmp_path / "new" / "agent.db").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_phone_that_cannot_be_encrypted_is_not_made(
    tmp_path: Path, capsys: Capture, there: bool
) -> None:
    """One without encryption would be in its place."""
    directory, secret = tmp_path / "new", tmp_path / "secret"
    secret.write_text("\n")
    if there:
        directory.mkdir()
        (directory / "notes.txt").write_text("mine")
    arguments = ("--name", "A", "--passphrase-file", str(secret), *ROUTERS)
    assert "the passphrase is empty" in fails(capsys, "init", directory, *arguments)
    left = [file.name for file in directory.iterdir()] if directory.exists() else None
    assert left == (["notes.txt"] if there else None)
    assert "heliograph device init" in fails(capsys, "status", directory)
    secret.write_text("correct horse\n")
    assert main(["device", "init", "--dir", str(directory), *arguments]) == 0
    assert "Its keys and messages are encrypted" in capsys.readouterr().out


def test_a_phone_that_cannot_be_made_to_the_end_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    async def fail(self: DeviceStore, name: str, value: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DeviceStore, "set", fail)
    assert "No space left" in fails(capsys, "init", tmp_path / "new", "--name", "A", *ROUTERS)
    assert not (tmp_path / "new").exists()


def test_a_time_out_says_what_to_look_at(
    phone: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    async def late(*arguments: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(Phone, "status", late)
    assert "check that the routers and the provider run" in fails(capsys, "status", phone)


def test_without_a_phone(tmp_path: Path, capsys: Capture) -> None:
    for command in ("status", "watch", "connect"):
        assert "heliograph device init" in fails(capsys, command, tmp_path / "none")


def test_help_teaches(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["device", "--help"])
    out = capsys.readouterr().out
    for words in (
        "device token of Apple",
        "heliograph sim apns",
        "connect --dir bob LINK",
        "--journal PLACE",
    ):
        assert words in out


# The screen.


def test_a_notification_is_drawn() -> None:
    content = build(message("Meet at #noon#.\nBring rope."), PreviewMode.MESSAGE, 3)
    lines = draw(content).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert lines[1].startswith("| Alice ")
    assert lines[1].endswith("(3) |")
    assert lines[2].startswith("| Meet at .... ")
    assert lines[3].startswith("| Bring rope. ")
    assert json.loads(draw(content, as_json=True))["badge"] == 3


def test_long_and_empty_texts_fit() -> None:
    for title, body in (("x" * 200, "word " * 100), ("", ""), ("t", "")):
        content = Content(Category.MESSAGE_RECEIVED, title, body, badge=1000)
        assert len({len(line) for line in draw(content).split("\n")}) == 1


def test_a_terminal_gets_no_control_characters() -> None:
    evil = "\x1b]0;title\x07\x9b31m\u202edesrever\r\nnext"
    assert not any(char in plain(evil) for char in "\x1b\x07\x9b\u202e\r\n")
    shown = draw(Content(Category.MESSAGE_RECEIVED, evil, evil))
    assert "\x1b" not in shown
    line = draw(Content(Category.MESSAGE_RECEIVED, evil, evil), as_json=True)
    assert line.isascii()
    assert line.isprintable()


@pytest.mark.parametrize(
    ("arguments", "place"), [(["--journal", "shown"], "shown"), (["--journal"], "alice/journal")]
)
def test_where_a_watch_keeps_its_journal(
    phone: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], place: str
) -> None:
    """A relative path is one of the working directory, as everywhere."""

    async def receive_by_web_push() -> None:
        async with Phone.open(phone) as opened:
            await phone_sources.save_web_push(opened, "127.0.0.1")

    asyncio.run(receive_by_web_push())
    monkeypatch.chdir(phone.parent)
    command = ["device", "watch", "--dir", str(phone), "--timeout", "0.1", *arguments]
    assert main(command) == 0
    found = [item.name for item in (phone.parent, phone) if (item / "shown").exists()]
    assert (phone.parent / place).is_dir()
    assert found == ([phone.parent.name] if place == "shown" else [])


def test_a_port_that_another_holds(tmp_path: Path, capsys: Capture) -> None:
    assert main(["device", "init", "--dir", str(tmp_path / "a"), "--name", "A", *ROUTERS]) == 0
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        said = fails(capsys, "register", tmp_path / "a", "--webpush", f"127.0.0.1:{port}")
    assert f"{port}" in said
    assert "stop the other `heliograph device watch`" in said
    assert "--webpush HOST:PORT" in said


def test_a_token_that_is_none_changes_nothing(phone: Path, capsys: Capture) -> None:
    assert "malformed device token" in fails(capsys, "register", phone, "--token", "apns_prod zz")
    assert "run `heliograph device register` first" in fails(capsys, "watch", phone)


def test_a_passphrase_that_is_no_text(phone: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    secret = ("--passphrase-file", str(tmp_path / "secret"))
    assert "one line of UTF-8" in fails(capsys, "status", phone, *secret)
