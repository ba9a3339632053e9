"""Every public name of the Python SDK has its JavaScript name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import inferlet

SOURCE = Path(__file__).parents[2] / "sdk" / "js" / "src"
# Of texts, which the server reads.
WORDS = ("inferlet._generated.device_words", "inferlet._generated.sampler_rules")
MEMBER = r"^  (?:static |async |override |get |readonly |\*)*(\w+)[(<:;?! ]"
# For programs that keep their own buffers, for waits, and for analyses; and what JavaScript has by
# its name in the library: of Python alone.
PYTHONS = re.compile(
    r"(attention|interception|introspect|layers|offload|samplers|watermark)\."
    r"|Context\.(drop|evict|hide|show|keep|join|score|verify)$|Generator\.(put|state)$"
    r"|device\.(Attend|attend|layers|per_token|ProgramSampler\.given_again|values_json)\b"
)
# Keywords of Python alone: trees, with `keep`; and what guesses or reads otherwise.
TREES = [("Context.forward", one) for one in ("parents", "mask", "positions")]
GENERATE = ("like", "drafter", "attend", "layers", "beside", "choose")
RULES = [("Context.generate", one) for one in GENERATE]
# What JavaScript calls otherwise, or has no use for.
OTHERWISE = {
    **dict.fromkeys(("TextDecoder.feed_all", "TextDecoder.waiting")),  # of ours alone
    "tools.ToolCall.values": None,  # of calls in Python's syntax
    **dict.fromkeys(("Model.embed", "Model.score", "Model.classify"), "Model.encode"),
    "NotInServerError": None,  # imports of the contract fail before a program begins
    "Sampler.to_json": "Sampler.toJSON",  # as JSON.stringify has it
    "device.ProgramSampler.to_json": "device.ProgramSampler.toJSON",
    "Generator.stop_round": None,  # of `ask` and `chat`, which are in Python
    "Generator.went_round": None,
    # Words of texts.
    **dict.fromkeys(f"device.{size}" for size in ("HEADS", "PAGES", "TOKENS", "VOCABULARY")),
    "device.uploaded": None,  # `{ tensor: "file/name" }` as it is
    "http.Response.read": "http.Response.bytes",  # as fetch has it
    "runtime.arguments": "runtime.args",  # a reserved word
}


def test_every_name_of_python_has_its_own() -> None:
    there = set(_names_of_javascript())
    names = [name for name in _names_of_python() if not PYTHONS.match(name)]
    wanted = {name: OTHERWISE.get(name, _camel(name)) for name in names}
    assert set(OTHERWISE) <= set(wanted), "exceptions for names that Python no longer has"
    missing = [name for name, own in wanted.items() if own is not None and own not in there]
    assert missing == []


def test_every_keyword_of_python_has_its_own() -> None:
    text = "\n".join(file.read_text() for file in SOURCE.glob("*.ts"))
    words = set(re.findall(r"\w+", text))
    keywords = {
        (name, parameter.name)
        for name, thing in _things(inferlet, "")
        if callable(thing) and not PYTHONS.match(name)
        if not (isinstance(thing, type) and issubclass(thing, Exception))
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert len(keywords) > 30
    missing = {pair for pair in keywords if _camel(pair[1]) not in words}
    assert missing <= {*TREES, *RULES}


def _names_of_python() -> Iterator[str]:
    return (name for name, _ in _things(inferlet, ""))


def _things(holder: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Names below a module or class, with dots, and what they stand for; `raw` is generated."""
    for name in _public(holder):
        thing = getattr(holder, name, None)
        if thing is inferlet.raw or getattr(thing, "__module__", "") in WORDS:
            continue
        if not isinstance(thing, ModuleType):
            yield prefix + name, thing
        if isinstance(thing, ModuleType | type):
            yield from _things(thing, f"{prefix}{name}.")


def _public(holder: Any) -> list[str]:
    if holder is inferlet:
        return list(inferlet.__all__)
    if isinstance(holder, type):
        names = {*vars(holder), *getattr(holder, "__annotations__", {})}
    else:
        own = vars(holder).items()
        names = {
            name
            for name, thing in own
            if getattr(thing, "__module__", None) == holder.__name__
            and (inspect.isclass(thing) or inspect.isfunction(thing))
        } | set(getattr(holder, "__all__", ()))
    return sorted(name for name in names if not name.startswith("_"))


def _names_of_javascript() -> Iterator[str]:
    for line in (SOURCE / "index.ts").read_text().split(";"):
        from_file = re.search(r'from "\./(\w+)\.ts"', line)
        if from_file is None:
            continue
        exported = dict(_exports(SOURCE / f"{from_file[1]}.ts"))
        whole = re.search(r"export \* as (\w+)", line)
        if whole is not None:
            for name, members in exported.items():
                yield f"{whole[1]}.{name}"
                yield from (f"{whole[1]}.{name}.{member}" for member in members)
            continue
        listed = re.search(r"\{([^}]*)\}", line)
        assert listed is not None
        for name in re.findall(r"(\w+)\s*(?:,|$)", listed[1].strip()):
            yield name
            yield from (f"{name}.{member}" for member in exported.get(name, ()))


def _exports(file: Path) -> Iterator[tuple[str, set[str]]]:
    """A module's exports, and the members of each: a class's own, and those of its options."""
    text = file.read_text()
    blocks = r"^export (?:class|interface|type) (\w+)[^\n]*\{\n(.*?)^\}"
    members = {
        found[1]: {
            *re.findall(MEMBER, found[2], re.M),
            *re.findall(r"^    (?:readonly|public) (\w+)", found[2], re.M),
            *re.findall(r"constructor\((?:readonly|public) (\w+)", found[2]),
        }
        for found in re.finditer(blocks, text, re.M | re.S)
    }
    declared = r"^export (?:async )?(?:function|class|interface|type|const)\*? (\w+)"
    for name in re.findall(declared, text, re.M):
        yield name, members.get(name, set())
    for group in re.findall(r"^export \{([^}]*)\}", text, re.M):
        for name in re.findall(r"(\w+)\s*(?:,|$)", group.strip()):
            yield name, set()


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)
