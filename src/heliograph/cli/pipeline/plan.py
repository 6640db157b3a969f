"""`heliograph pipeline plan`: what a fleet needs, and when this installation runs out."""

import argparse
import os
import re
from collections.abc import Iterator
from dataclasses import fields, replace

from heliograph.cli.arguments import Subparsers
from heliograph.cli.pipeline.opening import open_reader
from heliograph.cli.pipeline.options import add_action
from heliograph.pipeline.planning.costs import COSTS, values
from heliograph.pipeline.planning.forecast import ResourceLimits, describe_forecast, forecast
from heliograph.pipeline.planning.history import DaySums, complete_days, habits_of
from heliograph.pipeline.planning.sizing import UTILISATION, Habits, Machine, require

_PLAN = """\
Forecast when this installation runs out of CPU, store, provider quota or journal disk, from the
growth of its tables; and, with --devices, what a fleet of that size needs. What a device does is
measured if the tables have a week of it, else assumed; every assumption is printed, and can be
given. Costs of operations are those of the benchmarks. A forecast needs 14 complete days.
"""
_EXAMPLES = """\
a hundred million phones that are woken every 20 minutes:
  heliograph pipeline plan --devices 100M --wake-every 20

this installation, whose provider takes 500 requests a second and whose disk has 200 GB:
  heliograph pipeline plan --provider-rate 500 --store-gb 200
"""
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKMG]?)")


def add(actions: Subparsers) -> None:
    plan = add_action(
        actions, "plan", "plan capacity: what a fleet needs, and what runs out", run_plan, _PLAN
    )
    plan.epilog = _EXAMPLES
    plan.add_argument(
        "--devices", type=_count, metavar="N", help="size of the fleet to plan for, as 100M"
    )
    given = plan.add_argument_group("what a device does (measured, else as shown)")
    for option, name, text in (
        ("--notifications", "notifications", "notifications a day"),
        ("--subscriptions", "subscriptions", "queues that it subscribes to"),
        ("--peak", "peak", "busiest hour, in units of the mean"),
    ):
        default = getattr(Habits(), name)
        given.add_argument(option, type=_positive, metavar="N", help=f"{text} ({default:g})")
    given.add_argument(
        "--wake-every", type=_positive, metavar="MINUTES", help="interval of wake-ups (none)"
    )
    limits = plan.add_argument_group("what there is")
    limits.add_argument(
        "--cores",
        type=_positive,
        default=float(os.cpu_count() or 1),
        metavar="N",
        help="cores of the router (those of this machine: %(default)g)",
    )
    limits.add_argument("--store-gb", type=_positive, metavar="GB", help="disk of the store")
    limits.add_argument(
        "--provider-rate", type=_positive, metavar="N", help="pushes a second that you may send"
    )
    limits.add_argument(
        "--journal-gb", type=_positive, metavar="GB", help="disk for a day of journals"
    )
    machine = plan.add_argument_group("machines to plan with")
    machine.add_argument("--machine-cores", type=int, default=Machine().cores, metavar="N")
    machine.add_argument(
        "--machine-memory", type=_positive, default=Machine().memory_gb, metavar="GB"
    )
    machine.add_argument(
        "--price",
        type=_positive,
        metavar="N",
        help="the price of a machine for a month, in your currency",
    )
    plan.add_argument(
        "--cost",
        type=_cost,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"replace a measured cost; may be repeated: {', '.join(COSTS)}",
    )


def run_plan(options: argparse.Namespace) -> int:
    costs = values(dict(options.cost))
    days = _days(options)
    limits = ResourceLimits(
        options.cores, options.store_gb, options.provider_rate, options.journal_gb
    )
    for line in describe_forecast(forecast(days, costs, limits), len(days)):
        print(line)
    if options.devices is not None:
        for line in _fleet(options, days, costs):
            print(line)
    return 0


def _days(options: argparse.Namespace) -> list[DaySums]:
    """Return the complete days of the tables; none if there are no tables."""
    from heliograph.pipeline.tables.offsets import read_offsets

    if not read_offsets(options.dir).batch:
        return []
    with open_reader(options) as pipeline:
        from heliograph.pipeline import views
        from heliograph.pipeline.jobs.growth import collect_hours
        from heliograph.pipeline.jobs.routers import router_facts, until_at

        until = until_at(router_facts(pipeline.offsets.routers)) // 1_000_000
        missing = {
            day
            for gap in pipeline.gaps()
            for day in range(gap.from_at // 86_400_000_000, gap.until_at // 86_400_000_000 + 1)
        }
        return complete_days(collect_hours(views.counts(pipeline)), until, missing)


def _fleet(
    options: argparse.Namespace, days: list[DaySums], costs: dict[str, float]
) -> Iterator[str]:
    measured = habits_of(days)
    given = {
        name: getattr(options, name)
        for name in ("notifications", "subscriptions", "peak")
        if getattr(options, name) is not None
    }
    if options.wake_every is not None:
        given["wake_ups"] = 1440 / options.wake_every
    habits = replace(measured or Habits(), **given)
    machine = Machine(options.machine_cores, options.machine_memory)
    need = require(options.devices, habits, costs, machine)
    yield f"{options.devices:,.0f} devices need"
    yield f"  machines      {need.machines:,} of {machine.cores} cores and {machine.memory_gb:g} GB"
    if options.price is not None:
        yield f"  price         {need.machines * options.price:,.0f} a month"
    yield f"  routers       {need.routers:,}, each with a PostgreSQL on a machine of its own"
    yield (
        f"  router CPU    {need.router_cores:,.1f} cores, {UTILISATION:.0%} used;"
        f" {need.database_cores:,.1f} of them for PostgreSQL"
    )
    yield f"  pipeline CPU  {need.pipeline_cores:,.1f} cores"
    yield f"  memory        {need.memory_gb:,.1f} GB of subscriptions"
    yield (
        f"  store         {need.store_gb:,.1f} GB, and {need.log_mb_per_second:,.1f} MB/s of"
        " PostgreSQL's log"
    )
    yield f"  journal       {need.journal_gb_per_day:,.1f} GB a day"
    yield (
        f"  providers     {need.provider_requests_per_second:,.0f} requests/s, on"
        f" {need.provider_connections:,} connections"
    )
    yield f"  network       at most {need.network_gbit_per_second:,.2f} Gbit/s"
    yield f"  notifications {need.notifications_per_second:,.0f}/s in the busiest hour"
    yield "assumptions (one copy of everything: add what you want for fail-over)"
    for field in fields(habits):
        source = "given" if field.name in given else "measured" if measured else "assumed"
        yield f"  {field.name:<24} {getattr(habits, field.name):g} ({source})"
    changed = dict(options.cost)
    for name, cost in COSTS.items():
        source = "given" if name in changed else cost.command
        yield f"  {name:<24} {costs[name]:g} {cost.unit} ({source})"


def _count(text: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text} is not a number such as 20000, 300k or 100M")
    return float(match[1]) * _SCALES[match[2]]


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def _cost(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in COSTS:
        raise argparse.ArgumentTypeError(f"{text}: there is {', '.join(COSTS)}")
    return name, _positive(value)
