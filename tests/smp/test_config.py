from pathlib import Path

import pytest

from heliograph.runtime.config import load
from heliograph.runtime.config_text import render
from heliograph.runtime.errors import ConfigError
from heliograph.smp.config import INTRODUCTION, PREFIX, QueueOptions, SmpConfig
from heliograph.smp.context import Rules
from heliograph.smp.router import SmpSettings
from heliograph.transport.server import Limits


def test_defaults_are_the_routers_own(tmp_path: Path) -> None:
    assert SmpConfig().settings(tmp_path) == SmpSettings()
    limits = SmpConfig().clients.limits()
    assert limits == Limits(inactive_after=6 * 3600, max_unanswered=256)
    assert SmpConfig().listen.port == 5223
    assert SmpConfig().metrics.port is None
    assert SmpConfig().store_url(tmp_path) == f"sqlite:///{tmp_path}/smp.db"


def test_every_setting_arrives(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[queues]\npassword = "p"\nallow_new = false\nquota = 1\nmessage_ttl_days = 0.5\n'
        "[notifications]\ndelivery_interval = 0\nttl_days = 2\n"
    )
    config = load(SmpConfig, file, prefix=PREFIX, environ={})
    assert config.settings(tmp_path) == SmpSettings(
        rules=Rules(quota=1, password=b"p", allow_new_queues=False),
        ntf_delivery_interval=0,
        message_ttl=43_200,
        notification_ttl=172_800,
    )


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
    ],
)
def test_checks(options: QueueOptions, key: str) -> None:
    assert [problem for problem, _ in options.check()] == [key]


def test_passwords_are_not_shown() -> None:
    assert "hunter2" not in repr(QueueOptions(password="hunter2"))
