"""A configuration as text: what is written can be loaded, and says everything."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, strategies as st

from heliograph.runtime.config.file import load
from heliograph.runtime.config.options import option, options
from heliograph.runtime.config.text import changed, reference, render


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the router listens,

    and how."""

    host: str = option("localhost", "The host | name.")
    port: int = option(5223, "The port.", minimum=0, maximum=65535)
    http_port: int | None = option(None, "The HTTP port.", example=80)
    enabled: bool = option(True, "Whether.")
    wait: float = option(1.5, "How long.", unit="seconds", above=0)
    mode: str = option("fast", "Which.", choices=("fast", "slow"))
    names: tuple[str, ...] = option((), "Names.")
    password: str = option("", "The password.", secret=True)
    size: int = option(1, "Size.", minimum=1)
    share: float = option(1, "Share.", maximum=1)


@dataclass(frozen=True, slots=True)
class Config:
    listen: Listen = field(default_factory=Listen)


def test_defaults_are_commented_out_and_live_keys_are_not() -> None:
    text = render(Config(), "Hello.", live=["listen.port"])
    assert tomllib.loads(text) == {"listen": {"port": 5223}}
    assert text.startswith("# Hello.\n")
    assert "# Where the router listens,\n#\n# and how.\n[listen]\n" in text
    assert "# How long. In seconds.\n# wait = 1.5\n" in text
    assert "# http_port = 80\n" in text


def test_every_default_can_be_uncommented() -> None:
    lines = render(Config(), "").splitlines()
    keys = {option.key for option in options(Config)}
    live = [
        line.removeprefix("# ") if line.removeprefix("# ").split(" = ")[0] in keys else line
        for line in lines
    ]
    document = tomllib.loads("\n".join(live))
    assert document["listen"].keys() == keys


@given(host=st.text(), names=st.lists(st.text()).map(tuple), wait=st.floats(1e-9, 1e9))
def test_what_is_rendered_loads_again(host: str, names: tuple[str, ...], wait: float) -> None:
    config = Config(Listen(host, 1, 2, False, wait, "slow", names, "secret"))
    text = render(config, "")
    listen = tomllib.loads(text)["listen"]
    assert listen["host"] == host
    assert tuple(listen.get("names", ())) == names
    assert float(listen.get("wait", 1.5)) == wait


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    config = Config(Listen("h", 1, 2, False, 3.0, "slow", ("a",), "p", 4, 0.5))
    file = tmp_path / "config.toml"
    file.write_text(render(config, ""))
    assert load(Config, file, prefix="X", environ={}) == config


def test_reference_has_every_setting() -> None:
    text = reference(Config, "HELIO")
    assert text.startswith("### `[listen]`\n\nWhere the router listens, and how.\n")
    for setting in options(Config):
        assert f"| `{setting.key}` |" in text
        assert f"`{setting.variable('HELIO')}`" in text
    assert "The host \\| name." in text
    assert "whole number, 0 to 65535 | `5223`" in text
    assert "whole number | not set" in text
    assert "number, more than 0 | `1.5`" in text
    assert "whole number, 1 or more" in text
    assert "number, at most 1" in text
    assert "| `fast` or `slow` |" in text
    assert "list of texts | `[]`" in text


def test_changed_hides_secrets() -> None:
    assert list(changed(Config())) == []
    config = Config(Listen(port=1, password="hunter2"))
    assert list(changed(config)) == ["listen.port = 1", "listen.password = (not shown)"]
