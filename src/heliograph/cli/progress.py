"""The progress of a long command."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

LINE_INTERVAL = 10.0
"""Seconds between two lines, where no bar can be drawn."""


class Bar:
    """Progress on standard error: a bar on a terminal, else a line now and then.

    `unit` is that of the counts, for the rate: `MB` of bytes, or what is counted.
    """

    WIDTH = 30

    def __init__(
        self,
        what: str,
        unit: str = "",
        output: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._unit = unit
        self._output = sys.stderr if output is None else output
        self._clock = clock
        self._started = clock()
        self._is_terminal = self._output.isatty()
        self._due_at = self._started + LINE_INTERVAL
        self._is_open = False
        if self._is_terminal:
            self._draw(f"\r{what} ...")

    def show(self, done: int, total: int) -> None:
        if not total:
            return
        now = self._clock()
        text = describe(done, total, now - self._started, self._unit)
        if self._is_terminal:
            filled = self.WIDTH * done // total
            bar = "#" * filled + "-" * (self.WIDTH - filled)
            self._draw(f"\r{self._what} [{bar}] {text}   ")
        elif now >= self._due_at:
            self._due_at = now + LINE_INTERVAL
            self._draw(f"{self._what}: {text}\n")

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._output.write("\n")

    def _draw(self, text: str) -> None:
        self._is_open = not text.endswith("\n")
        self._output.write(text)
        self._output.flush()


def describe(done: int, total: int, seconds: float, unit: str) -> str:
    """Return the share, the rate and an estimate of the time left."""
    text = f"{done / total:4.0%}"
    if not done or seconds <= 0:
        return text
    rate = done / seconds
    if unit == "MB":
        text += f", {rate / 1e6:.1f} MB/s"
    elif unit:
        text += f", {rate:.1f} {unit}/s"
    return text if done >= total else f"{text}, {(total - done) / rate:.0f} s left"
