"""Texts of device programs in Rust and JavaScript are checked as a program is built."""

# ruff: noqa: E501 - sources

from __future__ import annotations

from pathlib import Path

import pytest

from pie_py.build import BuildError
from pie_py.build.device_texts import check_javascript, check_rust

MISTAKES = {
    # A name that is misspelt, at its place in the file.
    'let _ = device::program("def f(x): return x.argmx()");': r"lib.rs:1:43: .*did you mean `argmax`",
    '\nfn f() {}\n  let _ = device::program("def f(x): return x.argmx()");': r"lib.rs:3:45: .*argmx",
    'const F: &str = "\n  def f(x):\n    return x\n";\nfn g() { device::program(F); }': (
        r"lib.rs:2:\d+: f returned <float \[vocabulary\]>"
    ),
    'device::attend(r#"def f(scores): return iota(HEADS) >= 0"#)': r"lib.rs:1:\d+: f returned",
    'device::program(include_str!("rule.txt"))': r"rule.txt:2:10: ",
    'device::program("def f(x):\\n  return (")': r"lib.rs:2:\d+: ",
    'device::program("1 + 1")': "no function: the last one of a text is the program",
    # With names and state that are known where it is sent.
    'device::program("def f(x, s):\n s.mu -= rate\n return draw(x.wheer(s.mu < 1.0, -inf))")': (
        r"lib.rs:3:14: a tensor has no `wheer`"
    ),
}
GOOD = (
    "device::program(text)",
    '// device::program("as in a comment")',
    'device::program("def f(x, s):\n  s.mu -= rate * 0.5\n  return draw(x.where(s.mu < 1.0, -inf))")',
    'device::program("def f(x): return x.argmax() if deep else table[0]")',
    'device::program(include_str!(concat!(env!("OUT_DIR"), "/a.txt")))',
    'let _ = Program::named("device");',
)
SCRIPTS = {
    "const f = device.program(`\n  def f(x):\n    return x.argmx()\n`);": r"a.ts:3:12: .*argmx",
    "device.attend('def f(scores): return iota(HEADS) >= 0')": r"a.ts:1:\d+: f returned",
    "const RULE = `def f(x): return x`;\nexport const f = device.program(RULE, { a: 1 });": (
        r"a.ts:1:\d+: f returned"
    ),
    "device.program(`def f(x): return ${rule}`)": "",
    "device.program(`def f(x, s): return (x * s.t + table[0]).argmax()`, { table })": "",
    "device.program(text, { rate: 0.1 }); context.generate(program('def'));": "",
}


@pytest.mark.parametrize("source", MISTAKES)
def test_a_mistake_is_told_with_its_place(source: str, tmp_path: Path) -> None:
    (tmp_path / "rule.txt").write_text("def f(x):\n  return )\n")
    file = tmp_path / "lib.rs"
    file.write_text(source)
    with pytest.raises(BuildError, match=f"device program: .*{MISTAKES[source]}"):
        check_rust([file])


@pytest.mark.parametrize("source", GOOD)
def test_what_is_not_known_yet_is_left_to_the_server(source: str, tmp_path: Path) -> None:
    (tmp_path / "lib.rs").write_text(source)
    check_rust([tmp_path / "lib.rs"])


@pytest.mark.parametrize("source", SCRIPTS)
def test_modules_of_javascript(source: str) -> None:
    modules = {"a.ts": source.encode(), "b.js": b"export {};"}
    if not SCRIPTS[source]:
        check_javascript(modules)
        return
    with pytest.raises(BuildError, match=f"device program: .*{SCRIPTS[source]}"):
        check_javascript(modules)
