"""`pie-py cluster`: many nodes as one server, and what a policy would do, simulated."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pie_py.cli.connect import EXIT_FAILED, EXIT_TERMINATED, json_option
from pie_py.cli.console import progress, say, table
from pie_py.cli.examples import with_example

if TYPE_CHECKING:
    from pie_cluster.machines.settings import Token
    from pie_cluster.simulated.simulation import Outcome
    from pie_py.bench.report import Report

BASELINE = "two-choices"
EXAMPLES = {
    "cluster": "pie-py cluster status",
    "cluster up": "pie-py cluster up --config cluster.toml",
    "cluster join": "pie-py cluster join tcp://127.0.0.1:7743 --token token.json --nodes 2",
    "cluster status": "pie-py cluster status --json",
    "cluster drain": "pie-py cluster drain n2 --seconds 600",
    "cluster down": "pie-py cluster down",
    "cluster simulate": "pie-py cluster simulate sample --nodes 256 --policy cached --check",
}


STATUS = {
    "node": "NODE",
    "incarnation": "LIFE",
    "state": "STATE",
    "version": "VERSION",
    "instances": "INSTANCES",
    "pool": "POOL",
    "waiting_seconds": "LOAD",
    "silent_seconds": "LAST SEEN",
    "advice": "",
}


@click.group("cluster")
def command() -> None:
    """Serve from many nodes as one server, and try placements."""


folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Of the cluster on this machine.  [default: that of a cluster without a configuration]",
)


@command.command("up")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file; docs/cluster.md has its settings.",
)
def up(config_file: Path | None) -> None:
    """Start a cluster on this machine, with its first nodes; it stays until `down`."""
    from pie_cluster.machines import operate
    from pie_cluster.machines.settings import read_config

    with _problems_shown(), _terminated_in_order():
        config = read_config(config_file)
        token = operate.up(config, say)
    say(f"the token for machines that join: {config.folder.absolute() / 'token.json'}")
    if (url := operate.http_url(config.folder.absolute())) is not None:
        say(f"HTTP at {url}")
    say(f"relayed clients reach port {token.relay_port} as well")
    click.echo(token.gateway)
    if token.is_encrypted:
        say(f"users need keys: pie-py keys add USER --data-folder {token.server['data_folder']}")
        say(f"then: pie-py ps --endpoint {token.gateway} --key USER.key.json")
    else:
        say(f"next: PIE_PY_ENDPOINT={token.gateway} pie-py run text_completion --prompt Hello")


@command.command("join")
@click.argument("address")
@click.option(
    "--token",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that `up` has written.",
)
@click.option("--nodes", type=click.IntRange(0, 1024), help="How many.  [default: by GPUs]")
@click.option(
    "--room",
    type=click.IntRange(1, 1024),
    help="For how many, of which the autoscaler starts what is needed.  [default: as --nodes]",
)
@click.option(
    "--host",
    help="This machine's address, for the others.  [default: that by which it reaches ADDRESS]",
)
@folder_option
def join(
    address: str,
    token: Path,
    nodes: int | None,
    room: int | None,
    host: str | None,
    folder: Path | None,
) -> None:
    """Make nodes of this machine, for the cluster whose gateway is at ADDRESS."""
    from pie_cluster.machines import operate

    with _problems_shown(), _terminated_in_order():
        folder = folder or _default() / "nodes"
        names = operate.join(address, token, folder, nodes, host, say, room)
    say(f"joined: {', '.join(names) or 'room for the autoscaler'}")


@command.command("status")
@folder_option
@json_option
def status(folder: Path | None, as_json: bool) -> None:
    """List the nodes, with what is wrong and what to do."""
    from pie_cluster.machines import operate

    with _problems_shown():
        token, folder = _token(folder)
        nodes = operate.nodes_of(token, folder)
    rows = [
        {
            "node": node.node,
            "incarnation": node.incarnation,
            "state": node.state,
            "version": node.version,
            "instances": node.instances,
            "pool": round(node.pool, 3),
            "waiting_seconds": round(node.waiting_seconds, 1),
            "silent_seconds": round(node.silent_seconds, 1),
            "endpoint": node.endpoint,
            "advice": operate.advice(node),
        }
        for node in nodes
    ]
    table(rows, STATUS, as_json)
    say(f"clients connect to {token.gateway}, relayed ones to port {token.relay_port} as well")
    if (url := operate.http_url(folder)) is not None:
        say(f"HTTP at {url}")


@command.command("drain")
@click.argument("node")
@click.option(
    "--seconds",
    default=3600.0,
    type=click.FloatRange(0, 1e6),
    help="After which it ends even with instances.  [default: an hour]",
)
@folder_option
def drain(node: str, seconds: float, folder: Path | None) -> None:
    """Have NODE take no more; it ends when it is empty, or at the deadline."""
    from pie_cluster.machines import operate

    with _problems_shown():
        token, folder = _token(folder)
        operate.drain(token, folder, node, seconds)
    say(f"{node} takes no more, and ends when it is empty, or in {seconds:g} s")


@command.command("down")
@folder_option
def down(folder: Path | None) -> None:
    """End what this machine runs of a cluster."""
    from pie_cluster.machines import operate

    with _problems_shown():
        folder = (folder or _default()).absolute()
        ran = operate.down(folder)
    say("ended" if ran else f"nothing of a cluster runs in {folder}")


def _default() -> Path:
    from pie_cluster.machines.settings import ClusterConfig

    return ClusterConfig().folder


def _token(folder: Path | None) -> tuple[Token, Path]:
    from pie_cluster.machines.settings import ClusterProblem, Token

    folder = (folder or _default()).absolute()
    if not (folder / "token.json").exists():
        raise ClusterProblem(f"no cluster is in {folder}; `pie-py cluster up` starts one")
    return Token.read(folder / "token.json"), folder


@contextmanager
def _problems_shown() -> Iterator[None]:
    """Turns what can go wrong into a line on standard error and the exit status."""
    from pie_cluster.machines.settings import ClusterProblem, WrongSettings

    try:
        yield
    except WrongSettings as error:
        raise click.UsageError(str(error)) from None
    except ClusterProblem as error:
        _fail(str(error))


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Within it SIGTERM ends this process as Ctrl-C does: what it has started ends as well."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # all ends already
        sys.exit(EXIT_TERMINATED)

    former = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@command.command("simulate")
@click.argument("trace")
@click.option("--policy", default="cached", help="Its name, or package.module:function.")
@click.option("--nodes", default=2000, type=click.IntRange(1, 16384), help="Nodes of the cluster.")
@click.option(
    "--load",
    default=0.8,
    type=click.FloatRange(0, 100, min_open=True),
    help="Prompt tokens that come, as a share of what all nodes could compute.",
)
@click.option(
    "--seconds", default=60.0, type=click.FloatRange(1, 1e6), help="Measured, after as many more."
)
@click.option(
    "--report-seconds",
    default=5.0,
    type=click.FloatRange(0.1, 1e6),
    help="Between two reports of a node: how old loads get.",
)
@click.option("--lines", default=100_000, type=click.IntRange(1), help="Of the trace, at most.")
@click.option("--seed", default=1, help="The same seed gives the same figures.")
@click.option("--check", is_flag=True, help="Exit with status 1 if a goal is missed.")
@json_option
def simulate(
    trace: str,
    policy: str,
    nodes: int,
    load: float,
    seconds: float,
    report_seconds: float,
    lines: int,
    seed: int,
    check: bool,
    as_json: bool,
) -> None:
    """Simulate where a cluster would place the launches of TRACE, beside two random choices.

    TRACE is a file of Mooncake's JSON lines, or a table (CSV) of BurstGPT's or Azure's; `sample`
    comes with pie_py. It is repeated, with other users, until it makes up the load.
    """
    from pie_cluster.directory.policies import POLICIES, load_policy
    from pie_cluster.simulated.sample import SAMPLE
    from pie_cluster.simulated.simulation import ARRIVALS, Scenario, Simulation
    from pie_cluster.simulated.traces import BadTrace, read_trace
    from pie_py.config.policies import UnknownPolicy

    path = SAMPLE if trace == "sample" else Path(trace)
    try:
        policies = {BASELINE: POLICIES[BASELINE], policy: load_policy(policy)}
        launches = read_trace(path, lines)
    except UnknownPolicy as error:
        raise click.UsageError(str(error)) from None
    except BadTrace as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{path}: {error.strerror}")
    scenario = Scenario(nodes, load, seconds, seconds, report_seconds, seed)
    outcomes: dict[tuple[str, str], Outcome] = {}
    for arrivals, variation in ARRIVALS.items():
        for name, decide in policies.items():
            with progress(f"{arrivals} arrivals, {name}"):
                run = Simulation(launches, scenario, decide, variation)
                outcomes[arrivals, name] = run.run()
    report = _report(outcomes, scenario.nodes, load, report_seconds, policy)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        report.show()
    if check and not all(goal.met for goal in report.goals):
        sys.exit(EXIT_FAILED)


def _report(
    outcomes: dict[tuple[str, str], Outcome], nodes: int, load: float, age: float, policy: str
) -> Report:
    from pie_cluster.simulated.simulation import percentile
    from pie_py.bench.report import Goal, Report

    report = Report(
        f"{nodes} nodes, prompts of {load:g} of what they could compute, loads up to {age:g} s old",
        [
            "arrivals",
            "policy",
            "launches",
            "hits %",
            "all hits %",
            "first token p50 ms",
            "p99 ms",
            "later p99 ms",
            "fullest/mean",
        ],
        notes=[
            "Hits: tokens of launches' prompts that were cached; all: later turns included, which"
            " stay where they are. Fullest: memory in use, over the time that is measured."
        ],
    )
    for (arrivals, name), found in outcomes.items():
        first = [percentile(found.first, share) * 1000 for share in (0.5, 0.99)]
        later = percentile(found.later, 0.99) * 1000 if found.later else None
        shares = [found.hit_share * 100, found.all_share * 100]
        row = [arrivals, name, len(found.first), *shares, *first, later, found.fullest]
        report.rows.append(row)
        if name == BASELINE or not found.first:
            continue
        base = outcomes[arrivals, BASELINE]
        p99 = percentile(found.first, 0.99) / percentile(base.first, 0.99)
        report.goals.append(Goal(f"{arrivals}: first token's p99 over {BASELINE}'s", p99, 0.5))
        report.goals.append(Goal(f"{arrivals}: fullest node over the mean", found.fullest, 1.6))
        if base.hits:
            gain = found.hit_share / base.hit_share
            what = f"{arrivals}: prefix hits over {BASELINE}'s"
            report.goals.append(Goal(what, gain, 3.0, at_most=False))
    return report


def _fail(text: str) -> None:
    click.echo(f"error: {text}", err=True)
    sys.exit(EXIT_FAILED)


with_example(command, "cluster", EXAMPLES)
