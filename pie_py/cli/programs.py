"""Programs on the server: `pie-py upload`, `programs`."""

from __future__ import annotations

from pathlib import Path

import click

from pie_py.cli.arguments import SuggestingGroup
from pie_py.cli.connect import At, errors_shown, fail, json_option, server_options, with_client
from pie_py.cli.console import columns, print_text, say, table
from pie_py.cli.target import find_target, program_bytes, target_bytes
from pie_py.client import sync
from pie_py.wire.adapter_file import BadAdapter
from pie_py.wire.modules import SAMPLER

COLUMNS = columns("name hash kind size user uploaded_ns=UPLOADED")


@click.group("programs", cls=SuggestingGroup, invoke_without_command=True)
@json_option
@server_options
@click.pass_context
def programs(context: click.Context, at: At, as_json: bool) -> None:
    """List the uploaded programs, oldest first; or remove some."""
    if context.invoked_subcommand is None:
        with errors_shown(), at.client() as client:
            table(client.programs(), COLUMNS, as_json)


@programs.command("rm")
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM...")
@click.option("--force", is_flag=True, help="Also with running instances, which are ended.")
@with_client
def remove(client: sync.Client, programs: tuple[str, ...], force: bool) -> None:
    """Remove programs of yours, by name or hash. A name takes its former programs with it."""
    for program in programs:
        for removed in client.remove_program(program, force=force):
            say(f"{removed['name']} ({removed['hash'][:12]}) is removed")


@click.command("upload")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--name", help="What to call it; the file's name without its ending by default.")
@click.option("--sampler", is_flag=True, help="FILE is a device program, to be named as a sampler.")
@click.option(
    "--adapter", is_flag=True, help="FILE is a folder with a LoRA, as PEFT saves it, to be loaded."
)
@click.option("--model", help="Of an adapter: which it is for; the default one if not given.")
@with_client
def upload(
    client: sync.Client,
    file: Path,
    name: str | None,
    sampler: bool,
    adapter: bool,
    model: str | None,
) -> None:
    """Upload FILE, and print its content hash: a component, a source, or a folder as of `run`.

    A Rust crate is built first. The modules beside a source that it imports are part of the
    program. Tensors for device programs are a .safetensors file.

    The server keeps the name for `pie-py launch`. Bytes that it has are not sent again.
    """
    from pie_py.build import BuildError

    if adapter:
        try:
            print_text(client.upload_adapter(name or file.absolute().name, file, model))
        except (BadAdapter, OSError) as error:
            fail(error)
        return
    if file.suffix == ".safetensors":
        print_text(client.upload_tensors(name or file.stem, file))
        return
    target = find_target(str(file)) if file.is_dir() and not sampler else None
    try:
        if sampler:
            program = program_bytes(file, lambda path: SAMPLER + path.read_bytes())
        else:
            program = program_bytes(file) if target is None else target_bytes(target)
    except BuildError as error:
        fail(error)
    print_text(client.upload(program, name or (target.name if target else file.absolute().stem)))
