"""Which optional packages a system needs, checked before anything is created."""

from importlib.util import find_spec

from heliograph.runtime.errors import StartError

__all__ = ["require"]


def require(*, simulators: bool, pipeline: bool) -> None:
    """Raise `StartError` with the command to run if a package is missing."""
    wanted = (
        (True, "pyarrow", "journal", "the event journal", None),
        (simulators, "h2", "sim", "simulated push providers", "--no-simulators"),
        (pipeline, "pyspark", "pipeline", "the data pipeline", "--no-pipeline"),
    )
    missing = [
        (extra, what if option is None else f"{what} ({_without(option)})")
        for is_wanted, module, extra, what, option in wanted
        if is_wanted and find_spec(module) is None
    ]
    if missing:
        extras = ",".join(extra for extra, _ in missing)
        raise StartError(
            f"packages are missing: pip install 'heliograph[{extras}]', for "
            + " and ".join(text for _, text in missing)
        )


def _without(option: str) -> str:
    return f"to do without: {option} for a new system, or enabled = false in config.toml"
