"""What authors of inferlets test with: the pytest plugin, and `pie-py new` and `test`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from support.javascript import require_javascript
from support.model_rig import forward_of, ints
from support.rust_components import use_toolchain

from pie_py.config.model import ModelConfig
from pie_py.testing.replaying_worker import Replayer, describe
from pie_py.testing.script import Line, ScriptFile, next_token, replaying
from pie_py.wire.plan import Batch, EmbedText, NextDist, Plan, SwapIn, SwapOut

ROOT = Path(__file__).parents[2]
# Whether this environment has been installed since the plugin became an entry point or not.
PLUGIN = ("-p", "no:pie_py", "-p", "pie_py.testing.plugin", "-p", "no:cacheprovider")

MORE_TESTS = """
import pytest


async def keep(name):
    from inferlet import Context, Model

    context = Context(Model.load()).fill("a long text " * 30)
    await context.flush()
    context.save(name)


async def answers(*prompts):
    from inferlet import Context, Grammar, Model, Sampler

    found = []
    for prompt in prompts:
        fork = Context(Model.load()).fill(prompt).fork()
        found.append(await fork.generate(Sampler.top_p(0.7, 0.9), max_tokens=30).collect_text())
    context = Context(Model.load()).fill("third")
    likely = await context.distribution(3)
    grammar = Grammar.choice(["yes", "no"])
    found.append(await context.generate(Sampler.argmax(), grammar=grammar).collect_text())
    return found, likely.tokens[0]


async def talk():
    from inferlet import Context, Model, Sampler

    context, said = Context(Model.load()), []
    for _ in range(3):
        context.user("and now?")
        said.append(await context.generate(Sampler.argmax(), max_tokens=30).collect_text())
    return said


def test_leak(pie):
    pie.client.run(keep, "a")


@pytest.mark.keeps_pages
def test_leak_that_is_wanted(pie):
    pie.client.run(keep, "b")


def test_answers(pie):
    pie.answers("It is one.", when="first")
    pie.answers("It is two.", when="second")
    pie.answers(tokens=[77], when="third")
    found, first = pie.client.run(answers, "the first", "the second")
    assert found == ["It is one.", "It is two.", found[2]]
    assert found[2] in ("yes", "no")
    assert first == 77


def test_conversation(pie):
    pie.answers("Hello.", "Well.")
    assert pie.client.run(talk) == ["Hello.", "Well.", "Well."]


def test_failure(pie):
    pie.run("broken.py")


def test_tiny(pie_tiny):
    assert pie_tiny.run(".", "--prompt", "The", "--max-tokens", "4").sent
    with pytest.raises(TypeError, match="take the fixture"):
        pie_tiny.answers("x")
"""

TALK = """
from inferlet import Context, Model, Sampler


async def main():
    context, said = Context(Model.load()), []
    for _ in range(3):
        context.user("and now?")
        said.append(await context.generate(Sampler.argmax(), max_tokens=30).collect_text())
    return " ".join(said)
"""

MORE_IN_JAVASCRIPT = """
test("it says why it fails", () => {
  assert.throws(() => run(["x"], "--nonsense"), /no option --nonsense/);
});
"""

MORE_IN_RUST = """
#[test]
fn a_value_needs_no_server() {
    assert_eq!(inferlet::json::parse("[1]").unwrap().to_json(), "[1]");
}

#[test]
#[should_panic(expected = "instance_id is a server's")]
fn a_call_needs_one() {
    inferlet::runtime::instance_id();
}
"""


def pie_py(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pie_py", *args]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


def outcomes_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The last word of `pytest -v` on each test."""
    return dict(re.findall(r"::(\w+) (\w+)", done.stdout))


@pytest.mark.slow
def test_a_new_project_and_what_its_tests_can_do(tmp_path: Path) -> None:
    made = pie_py("new", "my_inferlet", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    project = tmp_path / "my_inferlet"
    (project / "test_more.py").write_text(MORE_TESTS)
    (project / "broken.py").write_text("def main():\n    raise ValueError('on purpose')\n")
    done = pie_py("test", "-v", *PLUGIN, folder=project)
    outcomes = outcomes_of(done)
    assert outcomes.pop("test_failure") == "FAILED"
    assert outcomes.pop("test_leak") == "ERROR"
    assert set(outcomes.values()) == {"PASSED"}, done.stdout
    assert len(outcomes) == 5
    assert "left 8 KV pages behind" in done.stdout
    assert 'File "broken.py", line 2, in main' in done.stdout
    again = pie_py("new", "my_inferlet", folder=tmp_path)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert pie_py("new", "not-a-name", folder=tmp_path).returncode == 2


def test_a_run_whose_model_says_what_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALK)
    says = ("--says", "Hello.", "--says", "Well.")
    done = pie_py("run", *says, "talk.py", folder=tmp_path)
    assert done.stdout == "Hello. Well. Well.\n", done.stderr
    refused = pie_py("run", *says, "--model", "pie-tiny", "talk.py", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "takes no --model" in refused.stderr


def in_its_language(project: Path, *command: str) -> str:
    """What a language's own runner of tests tells of a project whose tests pass."""
    assert f"    {shlex.join(command)}\n" in (project / "README.md").read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "PATH": path, "CARGO_NET_OFFLINE": "true"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("language", ["js", "ts"])
def test_a_new_project_has_a_test_for_node(language: str, tmp_path: Path) -> None:
    require_javascript()
    assert pie_py("new", "tale", "--lang", language, folder=tmp_path).returncode == 0
    with (tmp_path / "tale/tale.test.mjs").open("a") as file:
        file.write(MORE_IN_JAVASCRIPT)
    told = in_its_language(tmp_path / "tale", "node", "--test")
    assert re.findall(r"^\W+(?:tests|pass) (\d+)$", told, re.MULTILINE) == ["2", "2"]


@pytest.mark.nightly
def test_a_new_project_has_a_test_for_cargo(tmp_path: Path) -> None:
    use_toolchain()
    assert pie_py("new", "tale", "--lang", "rust", folder=tmp_path).returncode == 0
    with (tmp_path / "tale/src/lib.rs").open("a") as file:
        file.write(MORE_IN_RUST)
    told = in_its_language(tmp_path / "tale", "cargo", "test")
    assert sorted(re.findall("test (.*) \\.\\.\\. ok", told)) == [
        "a_call_needs_one - should panic",
        "a_value_needs_no_server",
        "it_sends_what_the_model_says",
    ]


def test_the_plugin_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [(name, module)] = project["entry-points"]["pytest11"].items()
    plugin = EntryPoint(name, module, "pytest11").load()
    assert plugin.__name__ in PLUGIN
    assert hasattr(plugin, "pie_tiny")


@pytest.mark.parametrize(
    ("context", "said"),
    [([9], 1), ([9, 1], 2), ([9, 1, 2], 0), ([9, 1, 2, 8], 3), ([1, 2, 3, 8], 3), ([2, 1], 2)],
)
def test_what_a_script_says_next(context: list[int], said: int) -> None:
    assert next_token(context, [[1, 2], [3]], 0) == said
    assert next_token(context, [], 0) == 0


def test_a_script_that_changes(tmp_path: Path) -> None:
    writer, reader = ScriptFile(tmp_path / "s"), ScriptFile(tmp_path / "s")
    assert reader.read() == ()
    for lines in ((Line("a", when="b"),), (Line(tokens=(1, 2)),)):
        writer.write(lines)
        assert reader.read() == lines


def test_a_script_goes_on_after_pages_that_were_swapped_out(tmp_path: Path) -> None:
    text, pages = list(range(10, 46)), [7, 9, 8]  # of 16 tokens
    replaying(tmp_path, [Line(tokens=tuple(text))])
    folder = tmp_path / "model"
    worker = Replayer(describe(ModelConfig(source=str(folder)), folder), folder)
    worker.run(
        Plan(
            0,
            "replay",
            [
                EmbedText(ints(text[:34]), ints(range(34)), ints(range(34))),
                forward_of([34], range(34), [[]]),
                SwapOut(ints([0, 1, 2]), ints([5, 3, 4])),
                SwapIn(ints([5, 3, 4]), ints(pages)),
            ],
        )
    )
    held: dict[str, list[int]] = {"pages": pages, "page_starts": [0, 3], "page_used": [16, 16, 2]}
    batches: list[Batch] = [
        EmbedText(ints(text[34:35]), ints([34]), ints([0])),
        forward_of([1], [-1], [[1]], **held),
        NextDist(ints([1]), ints([1])),
    ]
    likely = worker.run(Plan(1, "replay", batches)).results[-1].values
    assert likely is not None
    assert likely.tokens.tolist() == [[text[35]]]
