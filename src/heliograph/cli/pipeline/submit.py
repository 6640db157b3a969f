"""`heliograph pipeline submit`: run a command of the pipeline on a Spark cluster."""

import argparse
import subprocess

from heliograph.cli.pipeline.opening import local_directory
from heliograph.cli.pipeline.options import MEMORY, PART
from heliograph.runtime.errors import StartError

SUBMITTED = ("run", "once", "report", "backfill", "compact", "expire", "requeue", "retire")


def run_submit(options: argparse.Namespace) -> int:
    from heliograph.pipeline.spark import submit

    arguments = [*options.arguments, "--master", options.master]
    if options.memory != MEMORY:
        arguments += ["--memory", options.memory]
    for key, value in options.conf:
        arguments += ["--conf", f"{key}={value}"]
    _check_submitted(arguments)
    packed = local_directory(options)
    words = submit.command(options.master, arguments, packed, options.deploy_mode)
    if not options.print:
        submit.pack(packed, options.deploy_mode)
    print(submit.shown(words), flush=True)
    if options.print:
        return 0
    return subprocess.run(words, env=submit.environment()).returncode  # noqa: S603


def _check_submitted(arguments: list[str]) -> None:
    """Check arguments here, rather than minutes later on the cluster. May raise SystemExit."""
    if arguments[0] not in SUBMITTED:
        raise StartError(
            f"{arguments[0]}: after -- comes one of {', '.join(SUBMITTED)}, and its options"
        )
    from heliograph.cli.main import parser

    parser(PART).parse_args([PART, *arguments])
