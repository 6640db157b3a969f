"""Checks of a system's own configuration, beside those of its routers."""

from collections.abc import Mapping
from pathlib import Path

from heliograph.doctor.findings import Findings, good, problem
from heliograph.runtime.config.file import FILE_NAME, load
from heliograph.runtime.errors import ConfigError
from heliograph.system.config import PREFIX, SystemConfig
from heliograph.system.layout import Layout

__all__ = ["check_system"]


def check_system(directory: Path, environ: Mapping[str, str]) -> Findings:
    """Check a system's configuration; yield nothing if the directory has none."""
    layout = Layout(directory)
    try:
        if not layout.config.exists() or not layout.smp.is_dir() or not layout.ntf.is_dir():
            return
    except OSError:
        return
    try:
        config = load(SystemConfig, layout.config, prefix=PREFIX, environ=environ)
    except ConfigError as exc:
        for text in exc.problems:
            yield problem("config", text, f"correct it in {layout.config}")
        return
    yield good("config", f"{FILE_NAME} of the system is good")
    if not config.page.is_loopback and not layout.token.exists():
        yield problem(
            "page",
            f"{layout.token} is missing, and the page asks for it on {config.page.host}",
            f"make one: (umask 077; openssl rand -hex 16 > {layout.token})",
        )
