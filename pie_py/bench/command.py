"""`pie-py bench`: the command line of the benchmarks."""

from __future__ import annotations

import math

import click

from pie_py.bench import options
from pie_py.bench.turns import Turns
from pie_py.config.server import ModelConfig


@click.group("bench")
def command() -> None:
    """Measure this machine: launches, calls, completion. Each starts a server of its own."""


@command.command("launch")
@options.model()
@options.as_json
@options.languages
@click.option(
    "--at-once",
    callback=options.numbers,
    metavar="N,N,...",
    default="1,64,256,896",
    show_default=True,
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

    with options.progress(len(languages) * len(at_once) * rounds + 1) as progress:
        report = launch(model, at_once, languages, rounds, tokens, progress)
    report.show(as_json)


@command.command("calls")
@options.model()
@options.as_json
@options.languages
@click.option(
    "--live", callback=options.numbers, metavar="N,N,...", default="1,896", show_default=True
)
@click.option("--count", type=click.IntRange(100), default=20_000, show_default=True)
def calls_command(
    model: ModelConfig, as_json: bool, languages: tuple[str, ...], live: tuple[int, ...], count: int
) -> None:
    """What a call costs that the control layer answers, seen from a guest."""
    from pie_py.bench.calls import calls

    with options.progress(len(languages) * len(live) + 1) as progress:
        report = calls(model, live, languages, count, progress)
    report.show(as_json)


@command.command("compare")
@click.option(
    "--model",
    "models",
    multiple=True,
    default=["tiny"],
    show_default=True,
    callback=options.bench_models,
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
@options.as_json
@options.languages
@options.counts("1,8,32")
@options.rounds(5)
@options.prompt
@options.tokens(64)
@options.vllm_python
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
    with options.progress(steps) as progress:
        report = compare(
            models, peers, at_once, languages, rounds, prompt, tokens, vllm_python, progress
        )
    report.show(as_json)


@command.command("stages")
@options.model("tiny")
@options.as_json
@options.languages
@options.counts("1,8,32,128")
@options.prompt
@options.tokens(96)
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

    with options.progress(len(languages) * len(at_once) + 1) as progress:
        report = stages(model, at_once, languages, prompt, tokens, progress)
    report.show(as_json)


@command.command("capacity")
@options.model("tiny")
@options.as_json
@options.turns("8,32,128,256,512,896", 3)
def capacity_command(model: ModelConfig, as_json: bool, turns: Turns) -> None:
    """Tokens a second of the control layer alone: its worker is a device that answers at once."""
    from pie_py.bench.capacity import capacity

    with options.progress(turns.steps) as progress:
        report = capacity(model, turns, progress)
    report.show(as_json)


@command.command("hot-path")
@options.model()
@options.as_json
@options.languages
@options.counts("1,8,32")
@options.prompt
@options.tokens(64)
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

    with options.progress(1 + len(languages) * len(at_once)) as progress:
        report = hot_path(
            model, at_once, languages, prompt, tokens, functions, limit, save, progress
        )
    report.show(as_json)
    if check and not all(goal.met for goal in report.goals):
        raise click.exceptions.Exit(1)


@command.command("fairness")
@options.model("tiny")
@options.as_json
@click.option("--source", "language", type=click.Choice(options.LANGUAGES), default="rust")
@click.option("--instances", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--max-batch-tokens",
    "batch_tokens",
    callback=options.numbers,
    metavar="N,N,...",
    default=str(ModelConfig().max_batch_tokens),
    show_default=True,
)
@options.prompt
@click.option("--long", type=click.IntRange(1), default=8192, show_default=True, help="Tokens.")
@options.tokens(1000)
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

    with options.progress(2 * len(batch_tokens)) as progress:
        report = fairness(model, instances, language, batch_tokens, prompt, long, tokens, progress)
    report.show(as_json)


@command.command("intercept")
@options.model("tiny")
@options.as_json
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
@click.option(
    "--requests", type=click.IntRange(1), default=32, show_default=True, help="A rate, real."
)
@click.option(
    "--rates", callback=options.rates, metavar="R,R,...", default="4,8", show_default=True
)
@click.option("--kv-pages", type=click.IntRange(8), default=160, show_default=True)
@click.option("--host-pages", type=click.IntRange(0), default=1024, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--time-scale", type=float, default=0.05, show_default=True, help="Of calls, real.")
@click.option("--token-scale", type=float, default=0.1, show_default=True, help="Of lengths, real.")
@click.option(
    "--sim-seconds",
    type=click.FloatRange(1),
    default=400,
    show_default=True,
    help="In which requests arrive, simulated.",
)
@click.option(
    "--sim-rates",
    callback=options.rates,
    metavar="R,R,...",
    default="0.2,0.35,0.5,0.7,1,1.4",
    show_default=True,
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
@options.plot_file
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
    sim_seconds: float,
    sim_rates: tuple[float, ...],
    sim_memory: int,
    sim_host: int,
    sim_costs: str,
    plot_file: str | None,
) -> None:
    """Memory while requests wait for tools: vLLM's way, discard, preserve, swap, min-waste."""
    from pie_py.bench import intercept
    from pie_py.bench.plots import plot_path
    from pie_py.bench.report import show_all

    model = model.model_copy(update={"kv_pages": kv_pages, "host_pages": host_pages})
    reports = []
    steps = (len(rates) * len(set(systems)) if "real" in parts else 0) + (
        len(sim_rates) * len(set(systems) & set(intercept.SIMULATED)) if "simulated" in parts else 0
    )
    with options.progress(steps) as progress:
        plot = None if plot_file is None else plot_path(plot_file, "interception")
        if "real" in parts:
            most = kv_pages * model.page_size // 4
            load = intercept.load_maker(lambda rate: requests, seed, time_scale, token_scale, most)
            scales = (
                f"Calls take {time_scale:g} of their times and texts have {token_scale:g} of their lengths,"
                f" with {most} tokens a context at the most: this model is that much faster, or smaller."
            )
            reports.append(intercept.real(model, systems, rates, load, scales, seed, progress))
        if "simulated" in parts:
            measured = sim_costs == "measured"
            costs = intercept.measured_costs(model) if measured else intercept.GPTJ_A100
            load = intercept.load_maker(
                lambda rate: math.ceil(sim_seconds * rate), seed, 1.0, 1.0, sim_memory // 4
            )
            reports.append(
                intercept.simulated(costs, sim_memory, sim_host, systems, sim_rates, load, progress)
            )
        if plot is not None:
            intercept.plot(reports, plot)
    show_all(reports, as_json)


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
    try:
        table = measure(Path(out), seconds, shapes, only, place, lambda t: click.echo(t, err=True))
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    click.echo(table)


@command.command("run-ahead")
@options.model("tiny")
@options.as_json
@options.turns("1,8,32", 5)
def run_ahead_command(model: ModelConfig, as_json: bool, turns: Turns) -> None:
    """Generations that queue steps before the last token is known, against step by step."""
    from pie_py.bench.run_ahead import run_ahead

    with options.progress(turns.steps) as progress:
        report = run_ahead(model, turns, progress)
    report.show(as_json)


@command.command("prefix")
@options.model("tiny")
@options.as_json
@options.languages
@click.option("--requests", type=click.IntRange(1), default=32, show_default=True)
@click.option("--shared", type=click.IntRange(1), default=512, show_default=True, help="Tokens.")
@click.option("--own", type=click.IntRange(1), default=16, show_default=True, help="Tokens.")
@options.tokens(16)
@options.rounds(5)
@options.vllm_python
def prefix_command(
    model: ModelConfig,
    as_json: bool,
    languages: tuple[str, ...],
    requests: int,
    shared: int,
    own: int,
    tokens: int,
    rounds: int,
    vllm_python: str | None,
) -> None:
    """Requests whose prompts begin alike: ours and vLLM's prefix caches, on and off."""
    from pie_py.bench.prefix import prefix

    sides = 2 * (len(languages) + (vllm_python is not None))
    with options.progress(1 + sides * (rounds + 1)) as progress:
        report = prefix(
            model, languages, requests, shared, own, tokens, rounds, vllm_python, progress
        )
    report.show(as_json)


_DRAWN = ("parallel", "multi-step", "interrupts")
_BFCL = ("v1-parallel", "live-parallel", "multi-turn-base", "multi-step-parallel")


@command.command("async")
@options.model()
@options.as_json
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(("model", "script", "traps")),
    default=("model", "script", "traps"),
    help="The model decides everything; calls are forced; what traps do with the KV cache, over"
    " context length and wait. Repeatable, all unless told.",
)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    type=click.Choice(_DRAWN + _BFCL),
    default=_DRAWN,
    help="Repeatable. The first three, unless told, are drawn; the others are BFCL's, always forced.",
)
@click.option(
    "--order",
    "orders",
    multiple=True,
    type=click.Choice(("lpt", "given", "random")),
    default=("lpt", "random"),
    help="Of forced calls that are ready, by the first one on all sides and by each of them on"
    " `async`. Repeatable; LPT and random unless told.",
)
@click.option("--requests", type=click.IntRange(1), default=12, show_default=True)
@click.option("--longest", type=click.IntRange(1, 5), default=5, show_default=True, help="Chain.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--bfcl",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="Where bfcl-eval is installed, if not beside this program.",
)
@options.plot_file
@options.rounds(1)
def async_command(
    model: ModelConfig,
    as_json: bool,
    parts: tuple[str, ...],
    workloads: tuple[str, ...],
    orders: tuple[str, ...],
    requests: int,
    longest: int,
    seed: int,
    folder: str | None,
    plot_file: str | None,
    rounds: int,
) -> None:
    """Asynchronous function calls beside synchronous ones: latency, calls right and wrong, overheads."""
    from dataclasses import replace
    from pathlib import Path

    from pie_py.bench.async_calls import bfcl, choices
    from pie_py.bench.async_calls.drawn import draw
    from pie_py.bench.async_calls.measure import FORCED_OPTIONS, SIDES, Side, measure, reports
    from pie_py.bench.async_calls.plots import plot
    from pie_py.bench.plots import plot_path
    from pie_py.bench.report import show_all

    decided = [Side(mode) for mode in SIDES] if "model" in parts else []
    forced = [
        Side(mode, order)
        for mode in SIDES
        for order in orders[: None if mode == "async" else 1]
        if "script" in parts
    ]
    place = None if folder is None else Path(folder)
    found = []
    runs = bool(decided or forced) * len(workloads) * requests * rounds
    with options.progress(runs + ("traps" in parts)) as progress:
        picture = None if plot_file is None else plot_path(plot_file, "async-function-calling")
        drawn = {
            name: [draw(name, seed, number, longest) for number in range(requests)]
            for name in workloads
            if name in _DRAWN
        }
        taken = {
            name: bfcl.load(name, place, seed, requests) for name in workloads if name in _BFCL
        }
        if taken and not forced and decided:
            raise RuntimeError("the calls of BFCL's sets are always forced: add --part script")
        if drawn and (decided or forced):
            found += reports(model, measure(model, drawn, decided + forced, rounds, progress))
        if taken and forced:
            sides = [replace(side, options=FORCED_OPTIONS) for side in forced]
            found += reports(model, measure(model, taken, sides, rounds, progress))
        if "traps" in parts:
            found.append(choices.choices(model, choices.TOKENS, choices.WAITS_MS))
            progress("traps")
        if picture is not None:
            plot(found, picture)
    show_all(found, as_json)
