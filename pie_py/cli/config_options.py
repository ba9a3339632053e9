"""The options that make up a server's configuration, for `serve` and `run`."""

from __future__ import annotations

from pathlib import Path

import click

from pie_py.cli.connect import options

# What `server_config` takes, all but the endpoint.
config_options = options(
    click.option("--threads", type=int, help="Threads of the inference worker."),
    click.option("--max-instances", type=int, help="Most instances alive at once."),
    click.option("--device", help="cpu, cuda or cuda:N; a GPU if there is one by default."),
    click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"])),
    click.option(
        "--quantize",
        type=click.Choice(["int8", "int4"]),
        help="Round weights to so many bits, on a CPU; as the checkpoint has them by default.",
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        default=None,
        help="The same tokens for a request whatever else runs: slower, on a CPU.",
    ),
    click.option(
        "--kv-dtype",
        type=click.Choice(["auto", "fp8"]),
        help="Format of keys and values in the pool; the model's by default.",
    ),
    click.option(
        "--gpu-memory-utilization",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
        help="Of a GPU's memory, for weights, pools and computing.  [default: 0.9]",
    ),
    click.option(
        "--tensor-parallel-size",
        type=click.IntRange(1),
        metavar="N",
        help="GPUs that share each model.  [default: 1]",
    ),
    click.option("--kv-pages", type=int, help="Pages of the KV pool; as many as fit by default."),
    click.option("--page-size", type=click.Choice(["8", "16", "24", "32"]), help="Tokens a page."),
    click.option(
        "--mcp",
        "mcp_servers",
        multiple=True,
        metavar="NAME=COMMAND",
        help="An MCP server whose tools inferlets may call: a command, or a URL. Repeatable.",
    ),
    click.option(
        "--allow-http-network",
        "http_networks",
        multiple=True,
        metavar="NETWORK",
        help="Private addresses that HTTP requests may go to, such as 10.0.0.0/8. Repeatable.",
    ),
    click.option(
        "--allow-http",
        "http_hosts",
        multiple=True,
        metavar="HOST[:PORT]",
        help="A host that inferlets may send HTTP requests to: a name, *.NAME, an address, or *;"
        " ports 80 and 443, or PORT, or :* for any. No host by default. Repeatable.",
    ),
    click.option(
        "--adapter",
        "adapters",
        multiple=True,
        metavar="NAME=FOLDER",
        help="A LoRA adapter of the model, as PEFT saves it. Repeatable.",
    ),
    click.option(
        "--on-demand",
        multiple=True,
        metavar="MODEL",
        help="A model that is loaded when it is first asked for, and unloaded when it is not used."
        " Repeatable.",
    ),
    click.option(
        "-m",
        "--model",
        "models",
        multiple=True,
        metavar="MODEL",
        help="A folder, a hub id, or a name such as smollm2: a model to serve; the embedded one by"
        " default. Repeatable.",
    ),
    click.option(
        "--config",
        "file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="TOML file with the fields of ServerConfig; options and environment win.",
    ),
)
