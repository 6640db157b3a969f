from pathlib import Path

import pytest

from heliograph.net.public import is_public
from heliograph.ntf.config import (
    INTRODUCTION,
    PREFIX,
    DeliveryOptions,
    NetworkOptions,
    NtfConfig,
    NtfListen,
)
from heliograph.ntf.limits import NtfLimits
from heliograph.ntf.push.options import ApnsOptions, FcmOptions, WebPushOptions
from heliograph.ntf.push.outbox import OutboxSettings
from heliograph.ntf.router import NtfSettings
from heliograph.ntf.subscriber.dials import DialLimits
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.config.file import load
from heliograph.runtime.config.operations import ControlOptions, StatsOptions
from heliograph.runtime.config.text import render
from heliograph.runtime.errors import ConfigError
from heliograph.runtime.limits import RateLimit
from heliograph.transport.socks import SocksMode, SocksProxy


def loaded(directory: Path, text: str, **environ: str) -> NtfConfig:
    file = directory / "config.toml"
    file.write_text(text)
    return load(NtfConfig, file, prefix=PREFIX, environ=environ)


def test_defaults_are_the_routers_own(tmp_path: Path) -> None:
    config, settings = NtfConfig(), NtfConfig().settings()
    assert settings.limits == NtfLimits(
        RateLimit(60, applies_to_loopback=False),
        20_000,
        RateLimit(3000.0, applies_to_loopback=False),
    )
    assert settings.unverified_ttl == NtfSettings().unverified_ttl == 7 * 86_400
    assert settings.outbox == NtfSettings().outbox
    assert settings.push_ttl == NtfSettings().push_ttl
    assert settings.subscriber.batch == NtfSettings().subscriber.batch
    assert settings.subscriber.client.allow is is_public
    assert settings.subscriber.dials == NtfSettings().subscriber.dials
    assert settings.subscriber.worthless_rate == NtfSettings().subscriber.worthless_rate
    assert config.listen.port == 443
    assert config.metrics.port is config.control.port is None
    assert config.store_url(tmp_path) == f"sqlite:///{tmp_path}/ntf.db"


def test_every_setting_arrives(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "[pushes]\nwindow = 7\nttl_days = 0.5\nbackoff_first_seconds = 2\n"
        "backoff_last_seconds = 3\nrefused_seconds = 4\n"
        "[subscriptions]\nuse_service_credentials = true\nown_domains = ['a.org', 'b.org']\n"
        "batch = 10\nping_seconds = 5\nworthless_events_per_second = 6\n"
        "[network]\nsocks_proxy = 'u:p@localhost:9050'\nsocks_mode = 'always'\n"
        "allow_private = true\ndials = 20\ndials_per_host = 3\nconnections_per_host = 30\n"
        "max_connections = 40\n"
        "[limits]\nnew_tokens_per_minute = 1\nsubscriptions_per_token = 2\n"
        "commands_per_second = 0.5\nunverified_days = 0\n"
        "[push.apns]\npadded_length = 2048\n",
    ).settings()
    assert settings.limits == NtfLimits(RateLimit(1), 2, RateLimit(0.5))
    assert settings.unverified_ttl is None
    assert settings.outbox == OutboxSettings(7, Backoff(2, 3), 4, apns_padded_length=2048)
    assert settings.push_ttl == 43_200
    assert settings.own_domains == ("a.org", "b.org")
    subscriber = settings.subscriber
    assert (subscriber.batch, subscriber.page, subscriber.use_service) == (10, 100, True)
    assert subscriber.client.socks == SocksProxy("localhost", 9050, SocksMode.ALWAYS, "u", "p")
    assert subscriber.client.allow is None
    assert subscriber.client.ping_interval == 5
    assert subscriber.worthless_rate == 6
    assert subscriber.dials == DialLimits(20, 20, 3, connections=40, connections_per_host=30)


def test_names_that_tests_and_operators_rely_on(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        "[store]\nurl = 'postgresql://u@h/d'\n[listen]\nhost = 'localhost'\nport = 0\n"
        "[push.apns]\nkey_file = 'k'\nkey_id = 'i'\nteam_id = 't'\ntopic = 'o'\n"
        "url = 'https://a'\nsandbox_url = 'https://b'\ntest_url = 'https://c'\nca_file = 'ca'\n"
        "allow_test_tokens = true\n",
        HELIOGRAPH_NTF_PUSH_APNS_TOPIC="other",
    )
    apns = config.push.apns
    assert (apns.topic, apns.key_id, apns.allow_test_tokens) == ("other", "i", True)
    assert config.store_url(tmp_path) == "postgresql://u@h/d"


def test_the_commented_file_is_the_defaults(tmp_path: Path) -> None:
    text = render(NtfConfig(), INTRODUCTION, live=["listen.host", "network.allow_private"])
    assert loaded(tmp_path, text) == NtfConfig()
    assert max(map(len, text.splitlines())) <= 100


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, "[push.apns]\nkey_fil = 'x'\n[push.nokia]\na = 1\n[lmits]\nb = 2\n")
    assert len(error.value.problems) == 3
    assert "did you mean key_file?" in str(error.value)


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        (ApnsOptions(key_file="k"), {"key_id", "team_id", "topic"}),
        (ApnsOptions(url="http://a"), {"url"}),
        (ApnsOptions(allow_test_tokens=True), {"test_url"}),
        (FcmOptions(token_url="ftp://a"), {"token_url"}),
        (WebPushOptions(subject="me"), {"subject"}),
        (NetworkOptions(socks_proxy="localhost"), {"socks_proxy"}),
        (NetworkOptions(socks_proxy="localhost:x"), {"socks_proxy"}),
        (DeliveryOptions(backoff_first_seconds=400), {"backoff_last_seconds"}),
        (StatsOptions(log_start_time="24:00"), {"log_start_time"}),
        (ControlOptions(admin_password="a b"), {"admin_password"}),
        (ControlOptions(user_password="a", user_password_file="b"), {"user_password_file"}),
        (ApnsOptions(), set()),
        (ControlOptions(admin_password="a", user_password_file="b"), set()),
    ],
)
def test_checks(section: ApnsOptions, keys: set[str]) -> None:
    assert {key for key, _ in section.check()} == keys


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("10.0.0.1", True),
        ("fe80::1", True),
        ("ntf.example.com", False),
        ("192.0.2.1", True),
        ("9.9.9.9", False),
        ("127.0.0.1,ntf.example.com", False),
    ],
)
def test_private_routers(host: str, private: bool) -> None:
    assert NtfListen(host).is_private is private


def test_control_passwords(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    options = ControlOptions(admin_password="a", user_password_file="secret")
    assert options.passwords_in(tmp_path) == (b"a", b"hunter2")
    assert ControlOptions().passwords_in(tmp_path) == (None, None)
    assert "hunter2" not in repr(ControlOptions(admin_password="hunter2"))


@pytest.mark.parametrize("text", [None, "", "two words"])
def test_bad_password_files(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "secret").write_text(text)
    with pytest.raises(ConfigError, match="user_password_file") as error:
        ControlOptions(user_password_file="secret").passwords_in(tmp_path)
    assert not text or text not in str(error.value)


def test_time_of_day() -> None:
    assert StatsOptions(log_start_time="03:30").start_seconds == 12_600
