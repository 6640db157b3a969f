"""What is an anomaly: a metric, how far it may depart from its own past, and what to do then."""

from dataclasses import dataclass

from heliograph.actions.contract import ActionKind
from heliograph.pipeline.jobs import rates

__all__ = ["LARGE_METRICS", "RULES", "AnomalyRule"]


@dataclass(frozen=True, slots=True)
class AnomalyRule:
    """What is an anomaly of a metric.

    `floor` is the least value, `scale` what is added to the deviation that is usual, `least` the
    deviation, and `samples` the least number of answers from which a share or a mean is computed.
    """

    finding: str
    metric: str
    kind: ActionKind
    floor: float
    scale: float
    version: str
    least: float = 6.0
    samples: int = 0
    is_silence: bool = False
    """The value is 0, and the baseline at least `floor`."""

    @property
    def is_ratio(self) -> bool:
        return self.samples > 0


SECOND = 1_000_000
RULES = (
    AnomalyRule("token_flood", rates.TOKEN, ActionKind.THROTTLE_TOKEN, 300, 30, "flood/1"),
    AnomalyRule(
        "subscription_flood",
        rates.SUBSCRIPTION,
        ActionKind.THROTTLE_SUBSCRIPTION,
        300,
        30,
        "flood/1",
    ),
    AnomalyRule("server_flood", rates.SERVER, ActionKind.THROTTLE_SERVER, 6000, 600, "flood/1"),
    AnomalyRule(
        "silent_server",
        rates.SERVER,
        ActionKind.REPORT,
        20,
        1,
        "departure/1",
        least=4.0,
        is_silence=True,
    ),
    AnomalyRule(
        "slow_server",
        rates.SERVER_DELAY,
        ActionKind.REPORT,
        SECOND,
        SECOND / 10,
        "departure/1",
        samples=1,
    ),
    AnomalyRule(
        "failing_provider",
        rates.PROVIDER,
        ActionKind.ALERT,
        0.2,
        0.02,
        "departure/1",
        samples=20,
    ),
    AnomalyRule(
        "slow_provider",
        rates.PROVIDER_DELAY,
        ActionKind.ALERT,
        2 * SECOND,
        SECOND / 5,
        "departure/1",
        samples=20,
    ),
    AnomalyRule(
        "verification_failures",
        rates.VERIFICATION,
        ActionKind.ALERT,
        0.5,
        0.05,
        "registrations/1",
        samples=20,
    ),
    AnomalyRule(
        "registration_wave", rates.REGISTERED, ActionKind.ALERT, 300, 30, "registrations/1"
    ),
    AnomalyRule(
        "source_wave", rates.SOURCE, ActionKind.PAUSE_REGISTRATIONS, 120, 12, "registrations/1"
    ),
)
LARGE_METRICS = (rates.TOKEN, rates.SUBSCRIPTION, rates.SOURCE)
"""Metrics with very many subjects: only those above the floor are compared with their past."""
