"""`heliograph page`: serve the status page of a system."""

import argparse
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from heliograph.cli.arguments import Subparsers
from heliograph.cli.system import add_command
from heliograph.ntf.config import PREFIX as NTF_PREFIX, NtfConfig
from heliograph.runtime import process
from heliograph.runtime.config.file import FILE_NAME, load
from heliograph.runtime.config.sections import Listen
from heliograph.runtime.errors import StartError, file_error
from heliograph.smp.config import PREFIX as SMP_PREFIX, SmpConfig
from heliograph.system.config import PREFIX, PageOptions, SystemConfig
from heliograph.system.layout import Layout
from heliograph.system.readiness import metrics_url

if TYPE_CHECKING:
    from heliograph.web.alerts import AlertTarget

C = TypeVar("C")

_DESCRIPTION = """\
Serve the status page of the routers in a directory: health and what to do about it, throughput,
latency, providers, processes, and what happened to one notification or token. It also sends the
alerts of [alerts] in config.toml. `heliograph up` runs it; this command runs it in the foreground.

On a loopback address the page needs no login; on any other it asks for the token in the file
page.token. The page only reads, except for the test push, which always needs the token.
"""


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "page", "serve the status page of a system", run, _DESCRIPTION)
    parser.add_argument("--host", help="where to listen, instead of [page] host in config.toml")
    parser.add_argument("--port", type=int, help="the TCP port; 0 is any free one")


def run(options: argparse.Namespace) -> int:
    layout = Layout(options.dir.absolute())
    if not any((directory / FILE_NAME).exists() for directory in (layout.smp, layout.ntf)):
        raise StartError(
            f"there is no router in {layout.root}: run `heliograph up --dir {layout.root}`"
        )
    overrides = {"page.host": options.host, "page.port": options.port}
    config = _load(SystemConfig, layout.config, PREFIX, overrides)
    smp = _load(SmpConfig, layout.smp / FILE_NAME, SMP_PREFIX)
    ntf = _load(NtfConfig, layout.ntf / FILE_NAME, NTF_PREFIX)
    page = config.page
    file = layout.root / page.token_file
    token = None if page.is_loopback else _read_token(file)
    action_token = _read_token(file) if file.exists() else None

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        from heliograph.web.alerts import AlertRules, Installation
        from heliograph.web.health import Severity
        from heliograph.web.metrics.sampler import Sampler
        from heliograph.web.monitor import Monitor
        from heliograph.web.push_test import PushTest
        from heliograph.web.server import serve
        from heliograph.web.sources import SystemSources

        routers = {"ntf": ntf.metrics, "smp": smp.metrics}
        samplers = {name: Sampler(metrics_url(of)) for name, of in routers.items()}
        rules = AlertRules(config.alerts.after_seconds, Severity(config.alerts.severity))
        sources = SystemSources(layout, config, ntf)
        places = {"smp": _place(smp.listen), "ntf": _place(ntf.listen)}
        machine = socket.gethostname()
        name = config.alerts.name or (machine if _is_local(ntf.listen.host) else ntf.listen.host)
        installation = Installation(name, machine, str(layout.root), places)
        monitor = Monitor(samplers, sources, installation, _target(config), rules)
        push_test = PushTest(layout)
        async with serve(page.host, page.port, token, monitor, push_test, action_token) as url:
            yield url

    layout.page.mkdir(exist_ok=True, mode=0o700)
    return process.run(layout.page, serving)


def _load(
    kind: type[C], file: Path, prefix: str, overrides: Mapping[str, object] | None = None
) -> C:
    """Load a configuration; a missing one has the defaults, and what the environment sets."""
    found = file if file.exists() else Path(os.devnull)
    return load(kind, found, prefix=prefix, overrides=overrides or {})


def _read_token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except OSError as exc:
        raise StartError(f"{file_error(exc, file)}: the page needs a token") from exc
    if not token:
        raise StartError(f"{file} is empty: the page needs a token")
    return token


def _place(listen: Listen) -> str:
    return f"{listen.host}:{listen.port}"


def _is_local(host: str) -> bool:
    return PageOptions(host=host).is_loopback


def _target(config: SystemConfig) -> "AlertTarget":
    from heliograph.web.alerts import AlertTarget, Mail

    options = config.alerts
    mail = None
    if options.email_to:
        mail = Mail(
            options.smtp_host,
            options.smtp_port,
            options.email_from,
            options.email_to,
            options.smtp_user,
            options.smtp_password,
            options.smtp_encryption,
        )
    return AlertTarget(options.webhook, options.ntfy, mail)
