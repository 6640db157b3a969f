"""`heliograph page`: the status page of a system, by itself."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from heliograph.cli.system import add_command, load_system
from heliograph.ntf.config import PREFIX as NTF_PREFIX
from heliograph.ntf.config import NtfConfig
from heliograph.runtime import process
from heliograph.runtime.config import FILE_NAME, load
from heliograph.runtime.errors import StartError
from heliograph.runtime.sections import Metrics
from heliograph.smp.config import PREFIX as SMP_PREFIX
from heliograph.smp.config import SmpConfig
from heliograph.system.layout import Layout

_DESCRIPTION = """\
Serve the status page of the system in a directory: what it does now, what it did, and what became
of one notification or token. `heliograph up` runs it; this runs it by itself, in the foreground.

It is read-only. On a loopback address it asks for nothing; on any other it asks for the token in
the file page.token: open it once with ?token=TOKEN.
"""


def add(commands: Any) -> None:
    parser = add_command(commands, "page", "serve the status page of a system", run, _DESCRIPTION)
    parser.add_argument("--host", help="where to listen, instead of what config.toml says")
    parser.add_argument("--port", type=int, help="likewise; 0 is any free port")


def run(options: argparse.Namespace) -> int:
    layout = Layout(options.dir.absolute())
    overrides = {"page.host": options.host, "page.port": options.port}
    page = load_system(layout, overrides).page
    smp = load(SmpConfig, layout.smp / FILE_NAME, prefix=SMP_PREFIX)
    ntf = load(NtfConfig, layout.ntf / FILE_NAME, prefix=NTF_PREFIX)
    token = None
    if not page.is_loopback:
        try:
            token = layout.token.read_text().strip()
        except OSError as exc:
            raise StartError(f"{layout.token}: {exc.strerror}: the page needs a token") from exc

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        from heliograph.web.sampler import Sampler
        from heliograph.web.server import serve
        from heliograph.web.sources import SystemSources

        samplers = Sampler(_url(ntf.metrics)), Sampler(_url(smp.metrics))
        sources = SystemSources(layout, ntf)
        async with serve(page.host, page.port, token, *samplers, sources) as url:
            yield url

    return process.run(layout.page, serving)


def _url(metrics: Metrics) -> str | None:
    return None if not metrics.port else f"http://{metrics.host}:{metrics.port}"
