"""What is wrong with the system now, how bad it is, and what to do about it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from heliograph.documents import JsonMapping
from heliograph.web.metrics.sampler import METRICS_OFF, NO_ANSWER, NOT_ASKED

__all__ = ["HealthProblem", "Severity", "problems", "state_of"]

LATE, VERY_LATE = 60.0, 600.0
LOW_DISK, NO_DISK = 1 << 30, 200 << 20
MAX_LAG_SECONDS = 1800.0
OLD_OBJECTIVES = 3600.0
"""Age in seconds from which burn rates say nothing about now."""
DAY = 86_400.0
EXPIRES_SOON = 30 * DAY

TITLES = {"ntf": "notification router", "smp": "messaging router"}


_PARTS = {"provider": "ntf", "providers": "ntf", "pending": "ntf", "pipeline": "pipeline"}


class Severity(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """`key` names the kind and the thing, so that the same problem is recognized later."""

    key: str
    severity: Severity
    text: str
    action: str

    @property
    def part(self) -> str:
        """The part it is about; "system" is what all parts share."""
        kind, _, rest = self.key.partition(":")
        if kind in ("router", "process", "certificate"):
            return rest.partition(":")[0]
        return _PARTS.get(kind, "system")

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def state_of(found: Sequence[HealthProblem], is_known: bool) -> str:
    """Return ok, warning or critical; unknown before the first sample."""
    if not found:
        return "ok" if is_known else "unknown"
    worst = any(problem.severity is Severity.CRITICAL for problem in found)
    return Severity.CRITICAL.value if worst else Severity.WARNING.value


def problems(
    live: JsonMapping, certificates: Mapping[str, Mapping[str, float]], now: float
) -> list[HealthProblem]:
    """Return all problems, the worst first. `live` is the document that the page gets."""
    found = [
        *_routers(live["routers"]),
        *_processes(live["processes"]),
        *_disks(live["disks"]),
        *_providers(live),
        *_pending(live),
        *_certificates(certificates, now),
        *_pipeline(live["pipeline"]),
        *_found(live["found"]),
        *_objectives(live["pipeline"], now),
    ]
    return sorted(found, key=lambda problem: problem.severity is not Severity.CRITICAL)


FINDINGS = {
    "failing_provider": "A push provider fails far more often than it used to.",
    "slow_provider": "A push provider answers far more slowly than it used to.",
    "silent_server": "A messaging router that used to send notifications is silent.",
    "slow_server": "A messaging router answers far more slowly than it used to.",
    "verification_failures": "Most new tokens are rejected by their push provider.",
    "registration_wave": "Far more tokens are registered than usual.",
    "short": "A messaging router confirmed fewer subscriptions than were requested.",
    "surplus": "A messaging router has subscriptions of ours that we do not know.",
}
"""What the pipeline reports through actions, by the name of the finding."""


def _found(found: Mapping[str, int]) -> Iterator[HealthProblem]:
    for name in found:
        text = FINDINGS.get(name, f"The pipeline reports {name}.")
        action = "Run: heliograph ntf actions list, then show the report or alert. undo hides it."
        yield HealthProblem(f"found:{name}", Severity.WARNING, text, action)


def _routers(routers: Mapping[str, JsonMapping]) -> Iterator[HealthProblem]:
    for name, router in routers.items():
        problem, title = router["problem"], TITLES[name]
        if problem is None or problem == NOT_ASKED:
            continue
        key = f"router:{name}"
        if problem == METRICS_OFF:
            yield HealthProblem(
                key,
                Severity.WARNING,
                f"The {title} exports no metrics, so this page cannot watch it.",
                f"Set [metrics] port in {name}/config.toml and restart it.",
            )
        elif problem == NO_ANSWER:
            yield HealthProblem(
                key,
                Severity.CRITICAL,
                f"The {title} does not answer. Its values on this page are old.",
                f"Run: heliograph status; heliograph logs {name}",
            )
        elif problem == "not ready: starting":
            yield HealthProblem(key, Severity.WARNING, f"The {title} is starting.", "Wait.")
        else:
            yield HealthProblem(
                key,
                Severity.CRITICAL,
                f"The {title} is {problem}.",
                f"Run: heliograph doctor. See also: heliograph logs {name}",
            )


def _processes(processes: Sequence[JsonMapping]) -> Iterator[HealthProblem]:
    for process in processes:
        name, state = process["name"], process["state"]
        if state == "running":
            continue
        ended = f" ({process['ended']})" if process["ended"] else ""
        severity = Severity.WARNING if state == "starting" else Severity.CRITICAL
        text = f"The process {name} is {state}{ended}."
        yield HealthProblem(f"process:{name}", severity, text, f"Run: heliograph logs {name}")


def _disks(disks: Sequence[JsonMapping]) -> Iterator[HealthProblem]:
    for disk in disks:
        free, places = disk["free"], ", ".join(disk["places"])
        if free >= LOW_DISK:
            continue
        yield HealthProblem(
            f"disk:{places}",
            Severity.CRITICAL if free < NO_DISK else Severity.WARNING,
            f"Only {free >> 20} MB of disk space is free for {places}.",
            "Remove old backups and journal segments, or add space.",
        )


def _providers(live: JsonMapping) -> Iterator[HealthProblem]:
    providers = live["providers"]
    is_known = live["routers"]["ntf"]["as_of"] is not None
    if is_known and not any(provider["name"] != "apns_null" for provider in providers):
        yield HealthProblem(
            "providers",
            Severity.WARNING,
            "No push provider is configured, so no phone can be woken.",
            "Set [push.apns], [push.fcm] or [push.webpush] in ntf/config.toml.",
        )
    for provider in providers:
        name = provider["name"]
        if provider["state"] == "down":
            yield HealthProblem(
                f"provider:{name}",
                Severity.CRITICAL,
                f"The push provider {name} accepts no pushes. They stay pending.",
                "See Failures by reason on the status page, then run: heliograph doctor --online",
            )
        elif provider["state"] == "failing":
            yield HealthProblem(
                f"provider:{name}",
                Severity.WARNING,
                f"The push provider {name} fails for some pushes. They are retried.",
                "See Failures by reason on the status page.",
            )


def _pending(live: JsonMapping) -> Iterator[HealthProblem]:
    age, count = live["oldest_pending_seconds"], sum(live["pending"].values())
    if age > LATE:
        yield HealthProblem(
            "pending",
            Severity.CRITICAL if age > VERY_LATE else Severity.WARNING,
            f"{_pushes_are(count)} pending, the oldest for {age:.0f} s.",
            "See 'Pushes are late' in the runbook.",
        )


def _pushes_are(count: int) -> str:
    return "1 push is" if count == 1 else f"{count} pushes are"


def _certificates(
    certificates: Mapping[str, Mapping[str, float]], now: float
) -> Iterator[HealthProblem]:
    for part, expiries in certificates.items():
        for name, at in expiries.items():
            left = at - now
            if left > EXPIRES_SOON:
                continue
            text = f"expires in {left / DAY:.0f} days" if left > 0 else "has expired"
            yield HealthProblem(
                f"certificate:{part}:{name}",
                Severity.WARNING if left > 0 else Severity.CRITICAL,
                f"The {name} certificate of the {TITLES[part]} {text}.",
                f"Run: heliograph {part} rotate-certificate, then restart it.",
            )


def _pipeline(pipeline: JsonMapping) -> Iterator[HealthProblem]:
    if pipeline["state"] == "off":
        return
    if pipeline["unaccounted"]:
        yield HealthProblem(
            "pipeline:unaccounted",
            Severity.WARNING,
            f"{pipeline['unaccounted']} notifications are unaccounted for.",
            "Run: heliograph pipeline status",
        )
    if pipeline["state"] == "lagging":
        yield HealthProblem(
            "pipeline:lagging",
            Severity.WARNING,
            "A router should write its journal and does not, so it is not known what is missing.",
            "Run: heliograph pipeline status",
        )
    if pipeline["state"] == "gaps":
        yield HealthProblem(
            "pipeline:gaps",
            Severity.WARNING,
            "Events are known to be missing in the journals.",
            "Run: heliograph pipeline status",
        )
    if pipeline["lag_seconds"] is not None and pipeline["lag_seconds"] > MAX_LAG_SECONDS:
        yield HealthProblem(
            "pipeline:lag",
            Severity.WARNING,
            f"The data pipeline is {pipeline['lag_seconds'] / 60:.0f} minutes behind.",
            "Run: heliograph logs pipeline",
        )
    if pipeline["state"] == "unreadable":
        yield HealthProblem(
            "pipeline:tables",
            Severity.WARNING,
            "The tables of the data pipeline cannot be read.",
            "Run: heliograph doctor",
        )


def _objectives(pipeline: JsonMapping, now: float) -> Iterator[HealthProblem]:
    """Yield the worst alert of each objective and provider, unless the rates are old."""
    until = pipeline["objectives_until"]
    if until is None or now - until > OLD_OBJECTIVES:
        return
    for result in pipeline["objectives"]:
        for alert in result["alerts"][:1]:
            yield HealthProblem(
                f"pipeline:objective:{result['objective']}:{result['provider']}",
                Severity(alert["severity"]),
                alert["text"],
                "See 'An error budget is used up' in the runbook.",
            )
