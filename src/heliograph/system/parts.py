"""The command of each part, and which parts must be ready before it."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from heliograph.system.config import PipelineOptions, SystemConfig
from heliograph.system.layout import Layout

__all__ = ["SystemPart", "parts"]


@dataclass(frozen=True, slots=True)
class SystemPart:
    """One process. It prints `ready ...` on standard output when it works."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    is_slow: bool = False
    """The system counts as up before this part is ready."""


def parts(layout: Layout, config: SystemConfig) -> Iterator[SystemPart]:
    """Yield each part after those it needs."""
    simulators = config.simulators
    needed: tuple[str, ...] = ()
    if simulators.enabled:
        for kind, port, control in (
            ("apns", simulators.apns_port, simulators.apns_control_port),
            ("webpush", simulators.webpush_port, simulators.webpush_control_port),
        ):
            places = ("--port", str(port), "--control-port", str(control))
            yield _part(kind, "sim", kind, "--dir", str(layout.sim), *places, needs=needed)
            needed = (kind,)  # one after the other: both would create the authority that they share
    yield _part("smp", "smp", "start", "--dir", str(layout.smp))
    yield _part("ntf", "ntf", "start", "--dir", str(layout.ntf), needs=needed)
    yield _part("page", "page", "--dir", str(layout.root))
    if config.pipeline.enabled:
        yield _part(
            *("pipeline", "pipeline", "run", "--dir", str(layout.tables)),
            *("--journal", str(layout.journal), "--master", config.pipeline.master),
            *("--memory", config.pipeline.memory),
            *(word for text in config.pipeline.objectives for word in ("--objective", text)),
            *_decisions(layout, config.pipeline),
            *(
                ("--account", f"{config.pipeline.account_seconds:g}")
                if config.pipeline.stream
                else ("--every", f"{config.pipeline.every_seconds:g}")
            ),
            is_slow=True,
        )


def _decisions(layout: Layout, options: PipelineOptions) -> Iterator[str]:
    if "anomalies" not in options.decide:
        yield "--no-anomalies"
    if "snapshots" in options.decide:
        yield from ("--snapshots", str(layout.snapshots))
    for name in ("foreign", "dead-tokens", "best-hours"):
        if name in options.decide:
            yield f"--{name}"
    if options.decide_write:
        yield "--decide-write"


def _part(
    name: str, *arguments: str, needs: tuple[str, ...] = (), is_slow: bool = False
) -> SystemPart:
    return SystemPart(name, (sys.executable, "-m", "heliograph", *arguments), needs, is_slow)
