"""Where files are in the directory of a system.

config.toml    which parts run
page.token     the token of the page, which it asks for when it is not on loopback
smp/  ntf/     the routers: keys, configuration, store
sim/           simulated push providers
page/          the lock of the status page
journal/       events of the routers, for the pipeline
snapshots/     what the routers believe about subscriptions, for the pipeline
pair.key       the secret by which snapshots of both routers can be compared
pipeline/      the tables of the pipeline
logs/          one file for each part
state.json     what runs, for `heliograph status`
"""

from dataclasses import dataclass
from pathlib import Path

from heliograph.runtime.config.file import FILE_NAME


@dataclass(frozen=True, slots=True)
class Layout:
    root: Path

    @property
    def config(self) -> Path:
        return self.root / FILE_NAME

    @property
    def token(self) -> Path:
        return self.root / "page.token"

    @property
    def smp(self) -> Path:
        return self.root / "smp"

    @property
    def ntf(self) -> Path:
        return self.root / "ntf"

    @property
    def sim(self) -> Path:
        return self.root / "sim"

    @property
    def page(self) -> Path:
        return self.root / "page"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def pair_key(self) -> Path:
        return self.root / "pair.key"

    @property
    def tables(self) -> Path:
        return self.root / "pipeline"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"
