"""The page's test push: a message through both routers to a simulated phone."""

import os

from heliograph.documents import JsonObject
from heliograph.ntf.diagnosis.probe import ProbePath, probe
from heliograph.phone.push import ApnsSource, SimulatedDevice
from heliograph.system import state
from heliograph.system.layout import Layout
from heliograph.wire.addresses import decode_address

__all__ = ["PushTest"]

STEP_TIMEOUT = 10.0
NOT_RUNNING = "The routers do not run: `heliograph up` starts them."
NO_SIMULATOR = (
    "This system has no simulated push provider. To send a push to a real device:"
    " `heliograph ntf probe --smp ADDRESS --token TOKEN`."
)


class PushTest:
    """Sends test pushes through the system in a directory, one at a time."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.is_running = False

    async def run(self) -> JsonObject:
        """Return the steps with their seconds and problems; `ok` if all succeeded."""
        self.is_running = True
        try:
            return await self._run()
        finally:
            self.is_running = False

    async def _run(self) -> JsonObject:
        found = state.read(self._layout.state)
        addresses = {} if found is None else {k: v.address for k, v in found.parts.items()}
        if not addresses.get("smp") or not addresses.get("ntf"):
            return _refused(NOT_RUNNING)
        _, _, control = addresses.get("apns", "").partition(" control ")
        if not control:
            return _refused(NO_SIMULATOR)
        steps: list[JsonObject] = []

        def report(step: str, seconds: float, problem: str | None) -> None:
            steps.append({"name": step, "seconds": seconds, "problem": problem})

        source = ApnsSource(control.split()[0], os.urandom(32).hex())
        try:
            path = ProbePath(decode_address(addresses["smp"]), SimulatedDevice(source))
            ok = await probe(decode_address(addresses["ntf"]), report, STEP_TIMEOUT, path)
        finally:
            await source.close()
        return {"ok": ok, "problem": None, "steps": steps}


def _refused(problem: str) -> JsonObject:
    return {"ok": False, "problem": problem, "steps": []}
