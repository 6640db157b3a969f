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
        (extra, what, option)
        for is_wanted, module, extra, what, option in wanted
        if is_wanted and find_spec(module) is None
    ]
    if missing:
        extras = ",".join(extra for extra, _, _ in missing)
        parts = " and ".join(what for _, what, _ in missing)
        lines = [f"packages are missing for {parts}: pip install 'heliograph[{extras}]'"]
        options = " ".join(option for _, _, option in missing if option is not None)
        if options:
            lines.append(
                f"to do without: {options} for a new system, enabled = false in the config.toml of"
                " one that exists"
            )
        raise StartError("\n".join(lines))
