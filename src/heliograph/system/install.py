"""Create a system in a directory: routers with their keys, ports and configurations.

Nothing is overwritten: a part that exists keeps its keys and configuration.
"""

import secrets
import time
from dataclasses import replace
from pathlib import Path

from heliograph.actions.pairing import make_pair_secret
from heliograph.actions.signing import signing_key
from heliograph.actions.snapshots import SnapshotOptions
from heliograph.ntf import config as ntf
from heliograph.ntf.actions.options import ActionOptions
from heliograph.ntf.providers import create_vapid_key
from heliograph.ntf.push.options import ApnsOptions, PushOptions, WebPushOptions
from heliograph.runtime.config.file import FILE_NAME
from heliograph.runtime.config.operations import StatsOptions
from heliograph.runtime.config.sections import JournalOptions, Metrics
from heliograph.runtime.config.text import render
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import make_private_directory, write_file
from heliograph.runtime.identity import create_identity
from heliograph.smp import config as smp
from heliograph.system import ports
from heliograph.system.config import (
    INTRODUCTION,
    PageOptions,
    PipelineOptions,
    SimulatorOptions,
    SystemConfig,
)
from heliograph.system.layout import Layout
from heliograph.wire.primitives import b64encode

__all__ = ["create", "has_simulators"]

SMP_PORT, NTF_PORT, PAGE_PORT = 5223, 5224, 8650
SIMULATED_ID = "SIMULATION"  # ten letters, like Apple's
SIMULATED_TOPIC = "chat.simplex.app"
STREAM_SEAL_SECONDS = 0.5
STREAM_MEMORY = "2g"
UNCOMMENTED = ("listen.host", "listen.port")


def create(
    root: Path,
    host: str = "127.0.0.1",
    *,
    simulators: bool | None = None,
    pipeline: bool = True,
    account_seconds: float = PipelineOptions().account_seconds,
    any_port: bool = False,
    stream: bool = False,
    snapshot_seconds: float = SnapshotOptions().interval_seconds,
) -> SystemConfig:
    """Create what is missing. By default only a private system has simulators."""
    journal = JournalOptions(path="../journal")
    processing = PipelineOptions(pipeline, account_seconds=account_seconds)
    if stream:
        journal = replace(journal, seal_seconds=STREAM_SEAL_SECONDS)
        processing = replace(processing, stream=True, memory=STREAM_MEMORY)
    layout = Layout(root)
    listen = _listen(host)
    if simulators is None:
        simulators = listen.is_private
    make_private_directory(root)
    bind = listen.bind_address or "0.0.0.0"  # noqa: S104 - only to see which ports are free
    wanted = (0, 0, 0) if any_port else (SMP_PORT, NTF_PORT, PAGE_PORT)
    smp_port, ntf_port = _choose(bind, wanted[:2])
    page, smp_metrics, ntf_metrics, *simulated = _choose("127.0.0.1", (wanted[2], *(0,) * 6))
    places = SimulatorOptions(simulators, *simulated) if simulators else SimulatorOptions()
    config = SystemConfig(
        page=PageOptions(port=page),
        pipeline=processing,
        simulators=places,
    )
    if not layout.pair_key.exists():
        make_pair_secret(layout.pair_key)
    snapshots = SnapshotOptions("../snapshots", "../pair.key", snapshot_seconds)
    _smp(layout, host, smp_port, smp_metrics, journal, snapshots)
    signer = b64encode(signing_key(layout.tables).public) if pipeline else ""
    actions = ActionOptions(table="../pipeline", signer=signer) if pipeline else ActionOptions()
    _ntf(layout, replace(listen, port=ntf_port), ntf_metrics, places, journal, snapshots, actions)
    layout.journal.mkdir(mode=0o700, exist_ok=True)
    layout.snapshots.mkdir(mode=0o700, exist_ok=True)
    layout.tables.mkdir(mode=0o700, exist_ok=True)
    layout.page.mkdir(mode=0o700, exist_ok=True)
    if simulators:
        layout.sim.mkdir(mode=0o700, exist_ok=True)
    if not layout.token.exists():
        write_file(layout.token, f"{secrets.token_urlsafe(24)}\n".encode(), 0o600)
    write_file(layout.config, render(config, INTRODUCTION, live=("page.port",)).encode(), 0o600)
    return config


def has_simulators(host: str) -> bool:
    """Return whether a new system at this host gets simulated push providers by default."""
    return _listen(host).is_private


def _listen(host: str) -> ntf.NtfListen:
    listen = ntf.NtfListen(host=host)
    problems = [problem for _, problem in listen.check()]
    if problems:
        raise StartError(f"--host: {problems[0]}")
    return listen


def _choose(host: str, wanted: tuple[int, ...]) -> list[int]:
    try:
        return ports.choose(host, wanted)
    except OSError as exc:
        raise StartError(f"{exc}: is {host} an address of this machine?") from exc


def _smp(
    layout: Layout,
    host: str,
    port: int,
    metrics: int,
    journal: JournalOptions,
    snapshots: SnapshotOptions,
) -> None:
    if (layout.smp / FILE_NAME).exists():
        return
    config = smp.SmpConfig(
        listen=smp.SmpListen(host=host, port=port),
        notifications=smp.NotificationOptions(delivery_interval=0),
        metrics=Metrics(port=metrics),
        journal=journal,
        snapshots=snapshots,
    )
    create_identity(layout.smp, "SMP server CA", host, time.time())
    text = render(config, smp.INTRODUCTION, live=UNCOMMENTED)
    write_file(layout.smp / FILE_NAME, text.encode(), 0o600)


def _ntf(
    layout: Layout,
    listen: ntf.NtfListen,
    metrics: int,
    simulators: SimulatorOptions,
    journal: JournalOptions,
    snapshots: SnapshotOptions,
    actions: ActionOptions,
) -> None:
    if (layout.ntf / FILE_NAME).exists():
        return
    config = ntf.NtfConfig(
        listen=listen,
        push=_push(simulators) if simulators.enabled else PushOptions(),
        network=ntf.NetworkOptions(allow_private=listen.is_private),
        stats=StatsOptions(log_file="stats.csv"),
        metrics=Metrics(port=metrics),
        journal=journal,
        subscriptions=ntf.SubscriptionOptions(own_domains=(listen.host,)),
        snapshots=snapshots,
        actions=actions,
    )
    create_identity(layout.ntf, "NTF server CA", listen.host, time.time())
    create_vapid_key(layout.ntf)
    text = render(config, ntf.INTRODUCTION, live=(*UNCOMMENTED, "network.allow_private"))
    write_file(layout.ntf / FILE_NAME, text.encode(), 0o600)


def _push(simulators: SimulatorOptions) -> PushOptions:
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
