"""`python -m bench [NAME...]`: those named, or all but `readme`, which repeats one of them."""

import sys

from bench import (
    agent,
    codec,
    device,
    journal,
    network,
    ntf,
    ping,
    pipeline,
    readme,
    sizing,
    smp,
    up,
    wakeups,
    workers,
)
from heliograph.transport import loop

BENCHMARKS = {
    "agent": agent.run,
    "codec": codec.run,
    "device": device.run,
    "journal": journal.run,
    "network": network.run,
    "ping": ping.run,
    "smp": smp.run,
    "smp-postgresql": smp.run_postgresql,
    "ntf": ntf.run,
    "ntf-postgresql": ntf.run_postgresql,
    "pipeline": pipeline.run,
    "readme": readme.run,
    "sizing": sizing.run,
    "sizing-postgresql": sizing.run_postgresql,
    "up": up.run,
    "wakeups": wakeups.run,
    "workers": workers.run,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
        return 2
    for name in names or [name for name in BENCHMARKS if name != "readme"]:
        loop.run(BENCHMARKS[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
