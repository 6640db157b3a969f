"""Makes a new system in a directory: routers with keys, ports and configurations of their own.

Nothing that exists is overwritten: a part that is there already keeps its keys and configuration.
"""

import secrets
import time
from dataclasses import replace
from pathlib import Path

from heliograph.ntf import config as ntf
from heliograph.ntf.providers import create_vapid_key
from heliograph.ntf.push_options import ApnsOptions, PushOptions, WebPushOptions
from heliograph.runtime.config import FILE_NAME
from heliograph.runtime.config_text import render
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import make_private_directory, write_file
from heliograph.runtime.identity import create_identity
from heliograph.runtime.sections import Journal, Metrics
from heliograph.smp import config as smp
from heliograph.system import ports
from heliograph.system.config import INTRODUCTION, Page, Pipeline, Simulators, SystemConfig
from heliograph.system.layout import Layout

__all__ = ["create"]

SMP_PORT, NTF_PORT, PAGE_PORT = 5223, 5224, 8650
SIMULATED_ID = "SIMULATION"  # ten letters, as Apple's
SIMULATED_TOPIC = "chat.simplex.app"
LIVE = ("listen.host", "listen.port")


def create(
    root: Path,
    host: str = "127.0.0.1",
    *,
    simulators: bool | None = None,
    pipeline: bool = True,
    account_seconds: float = Pipeline().account_seconds,
    any_port: bool = False,
) -> SystemConfig:
    """Make all that is missing. Without a word on simulators, they are for a private system."""
    layout = Layout(root)
    listen = ntf.NtfListen(host=host)
    problems = [problem for _, problem in listen.check()]
    if problems:
        raise StartError(f"--host: {problems[0]}")
    if simulators is None:
        simulators = listen.is_private
    make_private_directory(root)
    bind = listen.bind_address or "0.0.0.0"  # noqa: S104 - only to see which ports are free
    wanted = (0, 0, 0) if any_port else (SMP_PORT, NTF_PORT, PAGE_PORT)
    smp_port, ntf_port = _choose(bind, wanted[:2])
    page, smp_metrics, ntf_metrics, *simulated = _choose("127.0.0.1", (wanted[2], *(0,) * 6))
    places = Simulators(simulators, *simulated) if simulators else Simulators()
    config = SystemConfig(
        Page(port=page), Pipeline(pipeline, account_seconds=account_seconds), places
    )
    _smp(layout, host, smp_port, smp_metrics)
    _ntf(layout, replace(listen, port=ntf_port), ntf_metrics, places)
    layout.journal.mkdir(exist_ok=True)
    layout.page.mkdir(exist_ok=True)
    if simulators:
        layout.sim.mkdir(exist_ok=True)
    if not layout.token.exists():
        write_file(layout.token, f"{secrets.token_urlsafe(24)}\n".encode(), 0o600)
    write_file(layout.config, render(config, INTRODUCTION, live=("page.port",)).encode(), 0o600)
    return config


def _choose(host: str, wanted: tuple[int, ...]) -> list[int]:
    try:
        return ports.choose(host, wanted)
    except OSError as exc:
        raise StartError(f"{exc}: is {host} an address of this machine?") from exc


def _smp(layout: Layout, host: str, port: int, metrics: int) -> None:
    if (layout.smp / FILE_NAME).exists():
        return
    config = smp.SmpConfig(
        listen=smp.SmpListen(host=host, port=port),
        notifications=smp.NotificationOptions(delivery_interval=0),
        metrics=Metrics(port=metrics),
        journal=Journal(path="../journal"),
    )
    create_identity(layout.smp, "SMP server CA", host, time.time())
    text = render(config, smp.INTRODUCTION, live=LIVE)
    write_file(layout.smp / FILE_NAME, text.encode(), 0o600)


def _ntf(layout: Layout, listen: ntf.NtfListen, metrics: int, simulators: Simulators) -> None:
    if (layout.ntf / FILE_NAME).exists():
        return
    config = ntf.NtfConfig(
        listen=listen,
        push=_push(simulators) if simulators.enabled else PushOptions(),
        network=ntf.NetworkOptions(allow_private=listen.is_private),
        stats=ntf.StatsOptions(log_file="stats.csv"),
        metrics=Metrics(port=metrics),
        journal=Journal(path="../journal"),
        subscriptions=ntf.SubscriptionOptions(own_domains=(listen.host,)),
    )
    create_identity(layout.ntf, "NTF server CA", listen.host, time.time())
    create_vapid_key(layout.ntf)
    text = render(config, ntf.INTRODUCTION, live=(*LIVE, "network.allow_private"))
    write_file(layout.ntf / FILE_NAME, text.encode(), 0o600)


def _push(simulators: Simulators) -> PushOptions:
    url = f"https://127.0.0.1:{simulators.apns_port}"
    return PushOptions(
        apns=ApnsOptions(
            key_file="../sim/apns.p8",
            key_id=SIMULATED_ID,
            team_id=SIMULATED_ID,
            topic=SIMULATED_TOPIC,
            url=url,
            sandbox_url=url,
            test_url=url,
            ca_file="../sim/ca.crt",
            allow_test_tokens=True,
        ),
        webpush=WebPushOptions(ca_file="../sim/ca.crt"),
    )
