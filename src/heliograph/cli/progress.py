"""The progress of a long command."""

import sys
import time


class Bar:
    """A progress bar on standard error, if it is a terminal."""

    WIDTH = 30

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = time.monotonic()
        self._shows = sys.stderr.isatty()

    def show(self, done: int, total: int) -> None:
        if not self._shows or not total:
            return
        share = done / total
        filled = int(self.WIDTH * share)
        spent = time.monotonic() - self._started
        left = f", {spent / share - spent:.0f} s left" if 0 < share < 1 else ""
        bar = "#" * filled + "-" * (self.WIDTH - filled)
        print(f"\r{self._what} [{bar}] {share:4.0%}{left}   ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shows:
            print(file=sys.stderr)
