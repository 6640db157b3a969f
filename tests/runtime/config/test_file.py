"""Loading a configuration: where values come from, and all that can be wrong with them."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from heliograph.runtime.config.file import load
from heliograph.runtime.config.options import option
from heliograph.runtime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Apns:
    """Apple."""

    key_file: str = option("", "The key.")
    topics: tuple[str, ...] = option((), "The topics.")


@dataclass(frozen=True, slots=True)
class Push:
    """Providers."""

    apns: Apns = field(default_factory=Apns)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where."""

    host: str = option("localhost", "The host.")
    port: int = option(5223, "The port.", minimum=0, maximum=65535)
    http_port: int | None = option(None, "The HTTP port.", example=80)
    enabled: bool = option(True, "Whether.")
    wait: float = option(1.5, "How long.", unit="seconds", above=0)
    mode: str = option("fast", "Which.", choices=("fast", "slow"))
    password: str = option("", "The password.", secret=True)

    def check(self) -> Iterator[tuple[str, str]]:
        if self.host == self.password:
            yield "password", "must not be the host"


@dataclass(frozen=True, slots=True)
class Config:
    listen: Listen = field(default_factory=Listen)
    push: Push = field(default_factory=Push)


def loaded(
    tmp_path: Path,
    text: str = "",
    environ: Mapping[str, str] | None = None,
    **overrides: Any,
) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return load(Config, file, prefix="HELIO", environ=environ or {}, overrides=dotted)


def problems(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, text, environ)
    prefix = f"{tmp_path}/config.toml: "
    return [problem.removeprefix(prefix) for problem in error.value.problems]


def test_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path) == Config()


def test_file(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        'listen = {port = 1, http_port = 2, wait = 3, enabled = false, mode = "slow"}\n'
        '[push.apns]\nkey_file = "k"\ntopics = ["a", "b"]\n',
    )
    assert config.listen == Listen(port=1, http_port=2, wait=3.0, enabled=False, mode="slow")
    assert type(config.listen.wait) is float
    assert config.push.apns == Apns("k", ("a", "b"))


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("HELIO_LISTEN_PORT", "1", "port", 1),
        ("HELIO_LISTEN_HTTP_PORT", "8", "http_port", 8),
        ("HELIO_LISTEN_HTTP_PORT", "", "http_port", None),
        ("HELIO_LISTEN_ENABLED", "No", "enabled", False),
        ("HELIO_LISTEN_ENABLED", "1", "enabled", True),
        ("HELIO_LISTEN_WAIT", "2", "wait", 2.0),
        ("HELIO_LISTEN_HOST", "123", "host", "123"),
    ],
)
def test_environment(tmp_path: Path, name: str, text: str, key: str, value: object) -> None:
    assert getattr(loaded(tmp_path, "", {name: text}).listen, key) == value


def test_environment_of_nested_sections_and_lists(tmp_path: Path) -> None:
    environ = {"HELIO_PUSH_APNS_KEY_FILE": "k", "HELIO_PUSH_APNS_TOPICS": "a, b,"}
    assert loaded(tmp_path, "", environ).push.apns == Apns("k", ("a", "b"))


def test_the_last_wins(tmp_path: Path) -> None:
    text, environ = "[listen]\nport = 1\n", {"HELIO_LISTEN_PORT": "2"}
    assert loaded(tmp_path, text, environ).listen.port == 2
    assert loaded(tmp_path, text, environ, listen__port=3).listen.port == 3
    assert loaded(tmp_path, text, environ, listen__port=None).listen.port == 2


def test_unknown_variables_are_reported_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"HELIO_LISTEN_PROT": "1", "HELIO_SERVICE_HOST": "10.0.0.1", "HELIOTROPE": "1"}
    with caplog.at_level(logging.WARNING):
        assert loaded(tmp_path, "", environ) == Config()
    assert "HELIO_LISTEN_PROT is not a setting: did you mean HELIO_LISTEN_PORT?" in caplog.text
    assert "HELIOTROPE" not in caplog.text
    assert "10.0.0.1" not in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[listen]\nprt = 1", "[listen] prt: there is no such key: did you mean port?"),
        (
            "[listen]\nkey_file = 1",
            "[listen] key_file: there is no such key: it belongs to [push.apns]",
        ),
        (
            "[push.apns]\nzzz = 1",
            "[push.apns] zzz: there is no such key: known are key_file, topics",
        ),
        ("port = 1", "port: there is no such key: it belongs to [listen]"),
        ("zzz = 1", "zzz: there is no such key: remove it"),
        ("[lisen]\nport = 1", "[lisen]: there is no such section: did you mean listen?"),
        (
            "[zzz]\nport = 1",
            "[zzz]: there is no such section: known are listen, push, push.apns",
        ),
        ("[push.apnz]", "[push.apnz]: there is no such section: did you mean push.apns?"),
        (
            "listen = 1",
            "listen is a section: write [listen] on a line of its own, and its keys below",
        ),
        ('[listen]\nport = "1"', '[listen] port = "1": must be a whole number'),
        ("[listen]\nport = 1.0", "[listen] port = 1.0: must be a whole number"),
        ("[listen]\nport = true", "[listen] port = true: must be a whole number"),
        ("[listen]\nport = {a = 1}", "[listen] port = {'a': 1}: must be a whole number"),
        ("[listen]\nport = -1", "[listen] port = -1: must be at least 0"),
        ("[listen]\nport = 65536", "[listen] port = 65536: must be at most 65535"),
        ("[listen]\nwait = 0", "[listen] wait = 0.0: must be more than 0 seconds"),
        ("[listen]\nwait = nan", "[listen] wait = nan: must be a number"),
        ("[listen]\nwait = inf", "[listen] wait = inf: must be a number"),
        ("[listen]\nenabled = 1", "[listen] enabled = 1: must be true or false"),
        ("[listen]\nhost = 1", '[listen] host = 1: must be a text in quotes, such as "text"'),
        ('[listen]\nmode = "x"', '[listen] mode = "x": must be one of "fast", "slow"'),
        (
            "[push.apns]\ntopics = [1]",
            '[push.apns] topics = (1,): must be a list of texts, such as ["one", "two"]',
        ),
        (
            '[listen]\nhost = "x"\npassword = "x"',
            "[listen] password: must not be the host",
        ),
    ],
)
def test_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, text) == [problem]


def test_everything_is_reported_at_once(tmp_path: Path) -> None:
    text = '[listen]\nport = -1\nprt = 1\nhost = "x"\npassword = "x"\n[push]\nfcm = 1\n'
    found = problems(tmp_path, text, {"HELIO_LISTEN_WAIT": "long"})
    assert found == [
        "[listen] port = -1: must be at least 0",
        "[listen] prt: there is no such key: did you mean port?",
        "[push] fcm: there is no such key: remove it",
        'HELIO_LISTEN_WAIT = "long": must be a number',
        "[listen] password: must not be the host",
    ]


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, "[listen]\npassword = 12345")
    assert "12345" not in problem
    assert "12345" not in repr(Listen(password="12345"))


def test_not_toml(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, "[listen")
    assert problem.startswith("not TOML: ")
    [problem] = problems(tmp_path, "[listen]\n[listen]\n")
    assert "line 2" in problem
    assert problem.endswith("each section and key may appear once")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name, words in (("absent", "no such file"), (".", "cannot be read")):
        with pytest.raises(ConfigError, match=words):
            load(Config, tmp_path / name, prefix="HELIO", environ={})
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(Config, tmp_path / "binary", prefix="HELIO", environ={})


def test_a_definition_that_cannot_work() -> None:
    @dataclass(frozen=True)
    class Bad:
        path: bytes = option(b"", "No.")

    with pytest.raises(TypeError, match="path"):
        load(Bad, Path(), prefix="X", environ={})
