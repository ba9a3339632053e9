"""An example of each command, at the end of its `--help`."""

from __future__ import annotations

from collections.abc import Mapping

import click

EXAMPLES = {
    "chat": 'pie-py chat -m smollm2 --system "You answer in one sentence."',
    "ask": 'pie-py ask "What is this?" < README.md',
    "run": 'pie-py run text_completion --prompt "Once upon a time"',
    "batch": "pie-py batch prompts.jsonl -o answers.jsonl --set max_tokens=32",
    "serve": "pie-py serve --model smollm2 --detach",
    "status": "pie-py status",
    "stop": "pie-py stop smollm2",
    "new": "pie-py new my_inferlet && cd my_inferlet && pie-py test",
    "test": "pie-py test -k capital",
    "build": "pie-py build my_inferlet.py --package markdown",
    "upload": "pie-py upload my_inferlet.py",
    "launch": 'pie-py launch my_inferlet --prompt "Once upon a time"',
    "ps": "pie-py ps --all",
    "attach": "pie-py attach my_inferlet-70c6fc49",
    "send": 'pie-py send my_inferlet-70c6fc49 "And then?"',
    "logs": "pie-py logs -f my_inferlet-70c6fc49",
    "kill": "pie-py kill my_inferlet-70c6fc49",
    "calls": "pie-py calls my_inferlet-70c6fc49",
    "branch": "pie-py branch my_inferlet-70c6fc49 --at 9 --source other.py",
    "resume": "pie-py resume my_inferlet-70c6fc49",
    "top": "pie-py top --interval 0.5",
    "pull": "pie-py pull smollm2",
    "rm": "pie-py rm smollm2",
    "models": "pie-py models pie-tiny --traits",
    "adapters": "pie-py adapters list",
    "adapters list": "pie-py adapters list --json",
    "adapters load": "pie-py adapters load poet /adapters/poet",
    "adapters unload": "pie-py adapters unload poet",
    "mcp": "pie-py mcp list",
    "mcp list": "pie-py mcp list --json",
    "mcp add": "pie-py mcp add search https://example.org/mcp --header 'Authorization=${TOKEN}'",
    "mcp remove": "pie-py mcp remove search",
    "quota": "pie-py quota",
    "usage": "pie-py usage --days 7",
    "programs": "pie-py programs --json",
    "programs rm": "pie-py programs rm my_inferlet --force",
    "inferlets": "pie-py inferlets",
    "inferlets copy": "pie-py inferlets copy tree_of_thought",
    "keys": "pie-py keys add ada",
    "keys add": "pie-py keys add ada -o ada.key.json",
    "keys http": "pie-py keys http ada.key.json",
    "keys list": "pie-py keys list --json",
    "keys remove": "pie-py keys remove ada",
    "keys rotate": "pie-py keys rotate ada -o ada.key.json",
    "backup": "pie-py backup pie-data.tar.gz --config pie.toml",
    "restore": "pie-py restore pie-data.tar.gz --data-folder /srv/pie",
    "check-config": "pie-py check-config pie.toml",
    "doctor": "pie-py doctor --json",
    "version": "pie-py version",
    "bench": "pie-py bench throughput --at-once 1,8",
    "bench throughput": "pie-py bench throughput --at-once 1,8",
}


def with_example(
    command: click.Command, path: str, examples: Mapping[str, str] = EXAMPLES
) -> click.Command:
    """The command, and those below it, with their examples."""
    if path in examples:
        command.epilog = f"\b\nExample:\n  {examples[path]}"
    for name, below in getattr(command, "commands", {}).items():
        with_example(below, f"{path} {name}", examples)
    return command
