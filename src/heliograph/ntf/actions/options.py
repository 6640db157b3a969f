"""The section `[actions]`: where actions come from, and how many may be applied."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heliograph.actions.contract import KINDS, ActionKind
from heliograph.actions.signing import decode_signer
from heliograph.ntf.store.actions.applying import DailyCap
from heliograph.runtime.config.options import option

__all__ = ["ActionCap", "ActionOptions"]

LEAST_PER_DAY = 10
"""Actions of a kind that may be applied in a day, whatever share of all subjects they are."""
_LIMIT = re.compile(r"(\S+) +([0-9]+(?:\.[0-9]+)?)% +([0-9]+(?:\.[0-9]+)?)/s")
_NAMES = tuple(kind.value for kind in ActionKind)


@dataclass(frozen=True, slots=True)
class ActionCap:
    """The most that is applied of one kind, in a day and in a second."""

    daily: DailyCap
    per_second: float


@dataclass(frozen=True, slots=True)
class ActionOptions:
    """Actions that the data pipeline decided on. None is applied unless you say so."""

    table: str = option(
        "",
        "The directory or URL of the pipeline's tables. If empty: none. A relative path begins in"
        " this directory.",
        example="../tables",
    )
    signer: str = option(
        "",
        "The public key of the pipeline, as `heliograph pipeline signer` prints it. If empty,"
        " actions are not checked for who made them, and none is applied automatically.",
    )
    automatic: tuple[str, ...] = option(
        (),
        "Kinds of actions that the router applies by itself; others wait for"
        " `heliograph ntf actions apply`.",
        example=("resubscribe",),
    )
    limits: tuple[str, ...] = option(
        (),
        "The most that is applied of a kind: percent of all tokens or subscriptions in a day (ten"
        " are always allowed), and number in a second. Defaults: "
        + ", ".join(f"{k.value} {t.percent_a_day:g}% {t.per_second:g}/s" for k, t in KINDS.items())
        + ".",
        example=("resubscribe 5% 50/s",),
    )
    poll_seconds: float = option(
        30.0, "How often the table is read.", unit="seconds", minimum=1, maximum=86_400
    )

    def check(self) -> Iterator[tuple[str, str]]:
        unknown = [name for name in self.automatic if name not in _NAMES]
        if unknown:
            yield "automatic", f"there is no kind {unknown[0]}: there are {', '.join(_NAMES)}"
        if self.automatic and not self.signer:
            yield "automatic", "needs `signer`: else anyone who can write the table could act"
        if self.signer:
            try:
                decode_signer(self.signer)
            except ValueError as exc:
                yield "signer", str(exc)
        for text in self.limits:
            match = _LIMIT.fullmatch(text)
            if match is None or match[1] not in _NAMES or not 0 <= float(match[2]) <= 100:
                yield "limits", f'{text}: must be as "resubscribe 5% 50/s"'
            elif not float(match[3]):
                yield "limits", f"{text}: must be more than 0 in a second"

    def place_in(self, directory: Path) -> str | None:
        """Return where the tables are; None if there are none."""
        if not self.table or "://" in self.table:
            return self.table or None
        return str((directory / self.table).absolute())

    @property
    def public_key(self) -> bytes | None:
        return decode_signer(self.signer) if self.signer else None

    @property
    def automatic_kinds(self) -> frozenset[ActionKind]:
        return frozenset(map(ActionKind, self.automatic))

    def caps(self) -> dict[ActionKind, ActionCap]:
        """Return the caps of all kinds."""
        found = {kind: (traits.percent_a_day, traits.per_second) for kind, traits in KINDS.items()}
        for text in self.limits:
            if match := _LIMIT.fullmatch(text):
                found[ActionKind(match[1])] = float(match[2]), float(match[3])
        return {
            kind: ActionCap(DailyCap(percent, LEAST_PER_DAY), rate)
            for kind, (percent, rate) in found.items()
        }
