from pathlib import Path

import pytest

from heliograph.net.public import is_public
from heliograph.runtime.config.file import load
from heliograph.runtime.config.text import render
from heliograph.runtime.errors import ConfigError
from heliograph.runtime.limits import RateLimit
from heliograph.smp.config import INTRODUCTION, PREFIX, ProxyOptions, QueueOptions, SmpConfig
from heliograph.smp.settings import ProxySettings, Rules, SmpLimits, SmpSettings
from heliograph.transport.server import Limits
from heliograph.transport.socks import SocksMode, SocksProxy

PROXY = ProxySettings(allow=is_public)
"""Senders choose the destinations, so an operator must allow private ones."""

LIMITS = SmpLimits(
    RateLimit(1000, applies_to_loopback=False), RateLimit(3000.0, applies_to_loopback=False)
)


def test_defaults_are_the_routers_own(tmp_path: Path) -> None:
    assert SmpConfig().settings(tmp_path) == SmpSettings(proxy=PROXY, limits=LIMITS)
    limits = SmpConfig().clients.limits()
    assert limits == Limits(inactive_after=6 * 3600, max_unanswered=256)
    assert SmpConfig().listen.port == 5223
    assert SmpConfig().metrics.port is None
    assert SmpConfig().store_url(tmp_path) == f"sqlite:///{tmp_path}/smp.db"


def test_every_setting_arrives(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[queues]\npassword = "p"\nallow_new = false\nquota = 1\nmessage_ttl_days = 0.5\n'
        "[limits]\nnew_queues_per_minute = 5\ncommands_per_second = 0\n"
        "[notifications]\ndelivery_interval = 0\nttl_days = 2\n"
        '[proxy]\nenabled = false\nallow_private = true\nsocks_proxy = "127.0.0.1:9050"\n'
        'socks_mode = "always"\nown_domains = ["my.org"]\nmax_connections = 10\n'
        "max_in_flight = 80\nconnect_timeout = 1\nrequest_timeout = 2\nretry_after = 3\n"
    )
    config = load(SmpConfig, file, prefix=PREFIX, environ={})
    assert config.settings(tmp_path) == SmpSettings(
        rules=Rules(quota=1, password=b"p", allow_new_queues=False),
        limits=SmpLimits(new_queues_per_minute=RateLimit(5)),
        proxy=ProxySettings(
            enabled=False,
            socks=SocksProxy("127.0.0.1", 9050, SocksMode.ALWAYS),
            own_domains=("my.org",),
            max_connections=10,
            max_in_flight=80,
            max_in_flight_each=10,
            max_in_flight_of_one=2,
            connect_timeout=1,
            request_timeout=2,
            retry_after=3,
        ),
        ntf_delivery_interval=0,
        message_ttl=43_200,
        notification_ttl=172_800,
    )


def test_a_short_time_to_live_is_looked_at_often(tmp_path: Path) -> None:
    config = SmpConfig(queues=QueueOptions(message_ttl_days=10 / 86_400))
    assert config.settings(tmp_path).expiration_interval == pytest.approx(1)


def test_the_commented_file_is_the_defaults(tmp_path: Path) -> None:
    text = render(SmpConfig(), INTRODUCTION, live=["listen.host", "listen.port"])
    (tmp_path / "config.toml").write_text(text)
    assert load(SmpConfig, tmp_path / "config.toml", prefix=PREFIX, environ={}) == SmpConfig()
    assert max(map(len, text.splitlines())) <= 100


def test_environment(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[listen]\nport = 1\n")
    config = load(
        SmpConfig,
        tmp_path / "config.toml",
        prefix=PREFIX,
        environ={"HELIOGRAPH_SMP_LISTEN_PORT": "5224"},
    )
    assert config.listen.port == 5224


def test_password_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    assert QueueOptions(password_file="password").password_in(tmp_path) == b"hunter2"
    assert QueueOptions(password="p").password_in(tmp_path) == b"p"
    assert QueueOptions().password_in(tmp_path) is None


@pytest.mark.parametrize("text", [None, "", "two words", "a@b"])
def test_bad_password_files(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "password").write_text(text)
    with pytest.raises(ConfigError, match="password_file") as error:
        QueueOptions(password_file="password").password_in(tmp_path)
    assert not text or text not in str(error.value)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (QueueOptions(password="a", password_file="b"), "password_file"),
        (QueueOptions(password="a:b"), "password"),
        (ProxyOptions(socks_proxy="localhost"), "socks_proxy"),
    ],
)
def test_checks(options: QueueOptions | ProxyOptions, key: str) -> None:
    assert [problem for problem, _ in options.check()] == [key]


def test_passwords_are_not_shown() -> None:
    assert "hunter2" not in repr(QueueOptions(password="hunter2"))
