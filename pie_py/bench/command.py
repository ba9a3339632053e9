"""`pie-py bench`: the command line of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pie_py.build.errors import BuildError
from pie_py.client.errors import ClientError
from pie_py.config import EMBEDDED_MODEL, ModelConfig
from pie_py.server_process import ServerFailed

LANGUAGES = ("rust", "python")
Function = TypeVar("Function", bound=Callable[..., Any])


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Reads whole numbers separated by commas; wrong ones are a usage error."""
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{value!r} is no list of positive numbers such as 1,8,32")
    return numbers


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; each call of what it gives tells what has just been done."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task("starting", total=steps)

        def tell(text: str) -> None:
            bars.update(task, advance=1, description=text)
            if not console.is_terminal:
                console.print(text, highlight=False)

        try:
            yield tell
        except Exception as error:
            reason = _first(error)
            if isinstance(reason, BuildError | ServerFailed | ClientError | RuntimeError):
                raise click.ClickException(str(reason)) from None
            raise


def _first(error: BaseException) -> BaseException:
    """What went wrong first in a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _bench_model(context: click.Context, parameter: click.Parameter, value: str) -> ModelConfig:
    from pie_py.bench.checkpoints import bench_model

    return ModelConfig(source=bench_model(value))


def _bench_models(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[ModelConfig, ...]:
    return tuple(_bench_model(context, parameter, value) for value in values)


def _model(default: str = EMBEDDED_MODEL) -> Callable[[Function], Function]:
    return click.option(
        "--model",
        default=default,
        show_default=True,
        callback=_bench_model,
        help="Folder or hub id of a checkpoint; `tiny` and `small` are random ones, made here.",
    )


def _counts(default: str) -> Callable[[Function], Function]:
    return click.option(
        "--at-once", callback=_numbers, metavar="N,N,...", default=default, show_default=True
    )


def _tokens(default: int) -> Callable[[Function], Function]:
    return click.option(
        "--tokens", type=click.IntRange(8), default=default, show_default=True, help="New ones."
    )


def _rounds(default: int) -> Callable[[Function], Function]:
    return click.option("--rounds", type=click.IntRange(1), default=default, show_default=True)


_vllm_python = click.option(
    "--vllm-python", metavar="PYTHON", help="The Python of an environment that has vLLM."
)
_prompt = click.option(
    "--prompt", type=click.IntRange(1), default=64, show_default=True, help="Tokens."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_languages = click.option(
    "--source",
    "languages",
    multiple=True,
    type=click.Choice(LANGUAGES),
    default=LANGUAGES,
    help="Rust component, Python source, or both (the default).",
)


@click.group("bench")
def command() -> None:
    """Measure this machine: launches, calls, completion. Each starts a server of its own."""


def _rates(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    """Reads numbers separated by commas; wrong ones are a usage error."""
    try:
        rates = tuple(float(part) for part in value.split(","))
    except ValueError:
        rates = ()
    if not rates or not min(rates) > 0:
        raise click.BadParameter(f"{value!r} is no list of positive numbers such as 0.5,1,2")
    return rates


@command.command("launch")
@_model()
@_json
@_languages
@click.option(
    "--at-once", callback=_numbers, metavar="N,N,...", default="1,64,256,896", show_default=True
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=4, show_default=True)
def launch_command(
    model: ModelConfig,
    as_json: bool,
    languages: tuple[str, ...],
    at_once: tuple[int, ...],
    rounds: int,
    tokens: int,
) -> None:
    """From the request to launch to the first message at the client, cold and warm."""
    from pie_py.bench.launch import launch

    with _progress(len(languages) * len(at_once) * rounds + 1) as progress:
        report = launch(model, at_once, languages, rounds, tokens, progress)
    report.show(as_json)


@command.command("calls")
@_model()
@_json
@_languages
@click.option("--live", callback=_numbers, metavar="N,N,...", default="1,896", show_default=True)
@click.option("--count", type=click.IntRange(100), default=20_000, show_default=True)
def calls_command(
    model: ModelConfig, as_json: bool, languages: tuple[str, ...], live: tuple[int, ...], count: int
) -> None:
    """What a call costs that the control layer answers, seen from a guest."""
    from pie_py.bench.calls import calls

    with _progress(len(languages) * len(live) + 1) as progress:
        report = calls(model, live, languages, count, progress)
    report.show(as_json)


@command.command("compare")
@click.option(
    "--model",
    "models",
    multiple=True,
    default=["tiny"],
    show_default=True,
    callback=_bench_models,
    help="As in the others; repeatable.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice(["ideal", "vllm"]),
    default=["ideal"],
    show_default=True,
    help="Who is measured besides, in turns. Repeatable.",
)
@_json
@_languages
@_counts("1,8,32")
@_rounds(5)
@_prompt
@_tokens(64)
@_vllm_python
def compare_command(
    models: tuple[ModelConfig, ...],
    peers: tuple[str, ...],
    as_json: bool,
    languages: tuple[str, ...],
    at_once: tuple[int, ...],
    rounds: int,
    prompt: int,
    tokens: int,
    vllm_python: str | None,
) -> None:
    """Time per token and throughput beside an ideal loop and vLLM, in one run on one checkpoint."""
    from pie_py.bench.compare import compare

    steps = len(models) * (1 + len(at_once) * (rounds + 1))
    with _progress(steps) as progress:
        report = compare(
            models, peers, at_once, languages, rounds, prompt, tokens, vllm_python, progress
        )
    report.show(as_json)


@command.command("stages")
@_model("tiny")
@_json
@_languages
@_counts("1,8,32,128")
@_prompt
@_tokens(96)
def stages_command(
    model: ModelConfig,
    as_json: bool,
    languages: tuple[str, ...],
    at_once: tuple[int, ...],
    prompt: int,
    tokens: int,
) -> None:
    """Where the time of one token goes, stage by stage, from the guest's call to its wake-up."""
    from pie_py.bench.stages import stages

    with _progress(len(languages) * len(at_once) + 1) as progress:
        report = stages(model, at_once, languages, prompt, tokens, progress)
    report.show(as_json)


@command.command("capacity")
@_model("tiny")
@_json
@_languages
@_counts("8,32,128,256,512,896")
@_rounds(3)
@_prompt
@_tokens(64)
def capacity_command(
    model: ModelConfig,
    as_json: bool,
    languages: tuple[str, ...],
    at_once: tuple[int, ...],
    rounds: int,
    prompt: int,
    tokens: int,
) -> None:
    """Tokens a second of the control layer alone: its worker is a device that answers at once."""
    from pie_py.bench.capacity import capacity

    with _progress(1 + len(languages) * len(at_once) * (rounds + 1)) as progress:
        report = capacity(model, at_once, languages, rounds, prompt, tokens, progress)
    report.show(as_json)


@command.command("policies")
@_model("tiny")
@_json
@click.option("--source", "language", type=click.Choice(LANGUAGES), default="rust")
@click.option("--instances", type=click.IntRange(1), default=128, show_default=True)
@click.option("--k", "ks", callback=_numbers, metavar="K,K,...", default="32,64,128")
@click.option("--t-ms", "ts", callback=_numbers, metavar="MS,MS,...", default="1,2,5,10")
@_rounds(3)
@_prompt
@_tokens(16)
def policies_command(
    model: ModelConfig,
    as_json: bool,
    language: str,
    instances: int,
    ks: tuple[int, ...],
    ts: tuple[int, ...],
    rounds: int,
    prompt: int,
    tokens: int,
) -> None:
    """Throughput of the adaptive policy against eager, k-only and t-only."""
    from pie_py.bench.policies import policies

    with _progress(rounds * (2 + len(ks) + len(ts))) as progress:
        report = policies(model, instances, language, ks, ts, rounds, prompt, tokens, progress)
    report.show(as_json)


@command.command("hot-path")
@_model()
@_json
@_languages
@_counts("1,8,32")
@_prompt
@_tokens(64)
@click.option("--functions", type=click.IntRange(0), default=0, help="Tell the most called, too.")
@click.option("--limit", type=float, default=1.1, show_default=True, help="Ratio that is allowed.")
@click.option("--check", is_flag=True, help="Exit with status 1 if a ratio is above the limit.")
@click.option("--save", is_flag=True, help="Keep these numbers, for later runs to be held to.")
def hot_path_command(
    model: ModelConfig,
    as_json: bool,
    languages: tuple[str, ...],
    at_once: tuple[int, ...],
    prompt: int,
    tokens: int,
    functions: int,
    limit: float,
    check: bool,
    save: bool,
) -> None:
    """Calls of functions that one token takes: a ratio that no other work on the machine changes."""
    from pie_py.bench.hot_path import hot_path

    with _progress(1 + len(languages) * len(at_once)) as progress:
        report = hot_path(
            model, at_once, languages, prompt, tokens, functions, limit, save, progress
        )
    report.show(as_json)
    if check and not all(goal.met for goal in report.goals):
        raise click.exceptions.Exit(1)


@command.command("fairness")
@_model("tiny")
@_json
@click.option("--source", "language", type=click.Choice(LANGUAGES), default="rust")
@click.option("--instances", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--max-batch-tokens",
    "batch_tokens",
    callback=_numbers,
    metavar="N,N,...",
    default=str(ModelConfig().max_batch_tokens),
    show_default=True,
)
@_prompt
@click.option("--long", type=click.IntRange(1), default=8192, show_default=True, help="Tokens.")
@_tokens(1000)
def fairness_command(
    model: ModelConfig,
    as_json: bool,
    language: str,
    instances: int,
    batch_tokens: tuple[int, ...],
    prompt: int,
    long: int,
    tokens: int,
) -> None:
    """Time between tokens, median to longest, while long prompts of others arrive."""
    from pie_py.bench.fairness import fairness

    with _progress(2 * len(batch_tokens)) as progress:
        report = fairness(model, instances, language, batch_tokens, prompt, long, tokens, progress)
    report.show(as_json)


@command.command("intercept")
@_model("tiny")
@_json
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(("real", "simulated")),
    default=("real", "simulated"),
    help="The real system, the simulator, or both (the default).",
)
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=click.Choice(("vllm", "discard", "preserve", "swap", "min-waste", "unaware")),
    default=("vllm", "discard", "preserve", "swap", "min-waste", "unaware"),
    help="Sides of the comparison; all unless told. `unaware`: programs do nothing, the server does.",
)
@click.option("--requests", type=click.IntRange(1), default=60, show_default=True)
@click.option("--rates", callback=_rates, metavar="R,R,...", default="2,4,8", show_default=True)
@click.option("--kv-pages", type=click.IntRange(8), default=256, show_default=True)
@click.option("--host-pages", type=click.IntRange(0), default=1024, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--time-scale", type=float, default=0.1, show_default=True, help="Of calls, real.")
@click.option("--token-scale", type=float, default=0.1, show_default=True, help="Of lengths, real.")
@click.option("--sim-requests", type=click.IntRange(1), default=300, show_default=True)
@click.option(
    "--sim-rates", callback=_rates, metavar="R,R,...", default="0.25,0.5,1,2,4", show_default=True
)
@click.option("--sim-memory", type=click.IntRange(4096), default=60_000, show_default=True)
@click.option("--sim-host", type=click.IntRange(0), default=240_000, show_default=True)
@click.option(
    "--sim-costs",
    type=click.Choice(("gptj-a100", "measured")),
    default="gptj-a100",
    show_default=True,
    help="Reckoned from specifications, or as this machine's worker measures the model.",
)
@click.option("--plot", "plot_file", metavar="FILE", help="Draw both parts, as PNG or SVG.")
def intercept_command(
    model: ModelConfig,
    as_json: bool,
    parts: tuple[str, ...],
    systems: tuple[str, ...],
    requests: int,
    rates: tuple[float, ...],
    kv_pages: int,
    host_pages: int,
    seed: int,
    time_scale: float,
    token_scale: float,
    sim_requests: int,
    sim_rates: tuple[float, ...],
    sim_memory: int,
    sim_host: int,
    sim_costs: str,
    plot_file: str | None,
) -> None:
    """Memory while requests wait for tools: vLLM's way, discard, preserve, swap, min-waste."""
    from pathlib import Path

    from pie_py.bench import intercept

    model = model.model_copy(update={"kv_pages": kv_pages, "host_pages": host_pages})
    reports = []
    steps = (len(rates) * len(systems) if "real" in parts else 0) + (
        len(sim_rates) * len(set(systems) & set(intercept.SIMULATED)) if "simulated" in parts else 0
    )
    with _progress(steps) as progress:
        if "real" in parts:
            most = kv_pages * model.page_size // 4
            load = intercept.load_maker(requests, seed, time_scale, token_scale, most)
            reports.append(intercept.real(model, systems, rates, load, seed, progress))
        if "simulated" in parts:
            measured = sim_costs == "measured"
            costs = intercept.measured_costs(model) if measured else intercept.GPTJ_A100
            load = intercept.load_maker(sim_requests, seed, 1.0, 1.0, sim_memory // 4)
            reports.append(
                intercept.simulated(costs, sim_memory, sim_host, systems, sim_rates, load, progress)
            )
        if plot_file is not None:
            intercept.plot(reports, Path(plot_file))
    for report in reports:
        report.show(as_json)


@command.command("gpu")
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    default="gpu-report",
    show_default=True,
    metavar="FOLDER",
)
@click.option("--seconds", type=float, default=3600.0, show_default=True, help="For all phases.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    default=("llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b"),
    help="Models by their shapes, the most important first. Repeatable.",
)
@click.option("--only", multiple=True, metavar="PART", help="Of a phase's name. Repeatable.")
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False),
    help="The benchmarks' inferlet as a component; built here unless told.",
)
def gpu_command(
    out: str, seconds: float, shapes: tuple[str, ...], only: tuple[str, ...], program: str | None
) -> None:
    """Tests and benchmarks of this machine's GPU, from a checkout of the sources."""
    from pathlib import Path

    from pie_py.bench.gpu import measure

    place = None if program is None else Path(program)
    click.echo(measure(Path(out), seconds, shapes, only, place, lambda t: click.echo(t, err=True)))
