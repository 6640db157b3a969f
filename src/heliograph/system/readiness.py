"""Whether the routers of a system can do their work, from their `/readyz`."""

import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from heliograph.ntf.config import PREFIX as NTF_PREFIX, NtfConfig
from heliograph.runtime.config.file import FILE_NAME, load
from heliograph.runtime.config.sections import Metrics
from heliograph.smp.config import PREFIX as SMP_PREFIX, SmpConfig
from heliograph.system.layout import Layout

__all__ = ["metrics_url", "problems"]

TIMEOUT = 3.0
NO_ANSWER = f"not ready: it does not answer within {TIMEOUT:.0f} s"


def metrics_url(metrics: Metrics) -> str | None:
    """Return where a router serves its metrics and readiness; None if it does not."""
    return f"http://{metrics.host}:{metrics.port}" if metrics.port else None


def problems(layout: Layout, running: Iterable[str]) -> dict[str, str]:
    """Ask the routers among the `running` parts, and return why some are not ready."""
    urls = {name: url for name in running if (url := _url(layout, name)) is not None}
    if not urls:
        return {}
    with ThreadPoolExecutor(len(urls)) as threads:
        found = dict(zip(urls, threads.map(_problem, urls.values()), strict=True))
    return {name: problem for name, problem in found.items() if problem is not None}


def _url(layout: Layout, name: str) -> str | None:
    match name:
        case "smp":
            return metrics_url(load(SmpConfig, layout.smp / FILE_NAME, prefix=SMP_PREFIX).metrics)
        case "ntf":
            return metrics_url(load(NtfConfig, layout.ntf / FILE_NAME, prefix=NTF_PREFIX).metrics)
    return None


def _problem(url: str) -> str | None:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=TIMEOUT):  # noqa: S310
            return None
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.read().decode(errors="replace").strip()
    except OSError:
        return NO_ANSWER
