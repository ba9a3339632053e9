"""Options of a server's configuration; `server_config` says which field each sets."""

from __future__ import annotations

import click

from pie_py.cli.connect import FILE, options, repeatable

_PEM = click.Path(exists=True, dir_okay=False, resolve_path=True)
# Of `serve`, beside `config_options`.
http_options = options(
    repeatable(
        *("--served-model-name", "served_model_names", "ALIAS[=MODEL]"),
        help="A further name of the first model, or of MODEL, over HTTP.",
    ),
    repeatable(
        *("--cors-origin", "cors_origins", "ORIGIN"),
        help="Origin of web pages that may call, as https://example.org, or *.",
    ),
    click.option("--tls-key", type=_PEM, help="The certificate's key, a PEM file."),
    click.option("--tls-certificate", type=_PEM, help="A PEM file; HTTP is then encrypted."),
    click.option("--no-http", is_flag=True, help="Serve no HTTP."),
    click.option(
        "--http",
        metavar="HOST:PORT",
        help="Where to serve HTTP.  [default: 127.0.0.1:8000, or a free port]",
    ),
)
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
    repeatable(
        *("--mcp", "mcp_servers", "NAME=COMMAND"),
        help="An MCP server whose tools inferlets may call: a command, or a URL.",
    ),
    repeatable(
        *("--allow-http-network", "http_networks", "NETWORK"),
        help="Private addresses that HTTP requests may go to, such as 10.0.0.0/8.",
    ),
    repeatable(
        *("--allow-http", "http_hosts", "HOST[:PORT]"),
        help="A host that inferlets may send HTTP requests to: a name, *.NAME, an address, or *;"
        " ports 80 and 443, or PORT, or :* for any. No host by default.",
    ),
    repeatable(
        *("--adapter", "adapters", "NAME=FOLDER"),
        help="A LoRA adapter of the model, as PEFT saves it.",
    ),
    repeatable(
        *("--on-demand", "on_demand", "MODEL"),
        help="A model that is loaded when it is first asked for, and unloaded when it is not used.",
    ),
    repeatable(
        *("-m", "--model", "models", "MODEL"),
        help="A folder, a hub id, or a name such as smollm2: a model to serve; the embedded one by"
        " default.",
    ),
    click.option(
        "--config",
        "file",
        type=FILE,
        help="TOML file with the fields of ServerConfig; options and environment win.",
    ),
)
