"""The options of `serve` that are about HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pie_py.cli.connect import options

# Options that set the field of the same name in GatewayConfig.
_FIELDS = ("cors_origins", "tls_key", "tls_certificate", "http")
_NAMES = "served_model_names"
_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)
http_options = options(
    click.option(
        "--served-model-name",
        _NAMES,
        multiple=True,
        metavar="ALIAS[=MODEL]",
        help="A further name of the first model, or of MODEL, over HTTP. Repeatable.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        metavar="ORIGIN",
        help="Origin of web pages that may call, as https://example.org, or *. Repeatable.",
    ),
    click.option("--tls-key", type=_FILE, help="The certificate's key, a PEM file."),
    click.option("--tls-certificate", type=_FILE, help="A PEM file; HTTP is then encrypted."),
    click.option("--no-http", is_flag=True, help="Serve no HTTP."),
    click.option(
        "--http",
        metavar="HOST:PORT",
        help="Where to serve HTTP.  [default: 127.0.0.1:8000, or a free port]",
    ),
)


def gateway_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of GatewayConfig that the options set.

    Raises:
        click.UsageError: if they do not go together.
    """
    fields = {name: given[name] for name in _FIELDS if name in given}
    if _NAMES in given:
        pairs = (name.partition("=")[::2] for name in given[_NAMES])
        fields[_NAMES] = dict(pairs)
        if "" in fields[_NAMES]:
            raise click.UsageError("--served-model-name: the further name is missing")
    if ("tls_key" in fields) != ("tls_certificate" in fields):
        raise click.UsageError("--tls-certificate and --tls-key go together")
    if given.get("no_http"):
        if fields:
            raise click.UsageError("--no-http goes with no other option of HTTP")
        fields["enabled"] = False
    return fields
