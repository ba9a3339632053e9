"""Backtraces of Rust programs name functions, and lines where the engine is asked for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rust_components import use_toolchain

from pie_control.api.binder import SIGNATURES
from pie_control.wasm.engine import Engine, EngineConfig, GuestLimits
from pie_control.wasm.guest import Guest, Status
from pie_control.wasm.linker import HostFunction, Linker
from pie_control.wasm.trap import GuestTrap, read_frames, shown
from pie_py.build.rust import build_crate

WITHOUT = """\
error while executing at wasm backtrace:
    0:   0x6c2b - a.wasm!rust_panic
    1:   0x6c0b - a.wasm!std::panicking::rust_panic_with_hook::hce1fbd83c0e7e186
    2:   0x44cc - a.wasm!core::panicking::panic_fmt::he77d678aeb0b5faf
    3:    0xfc2 - a.wasm!a::outer::hc089616ff9556513
    4:    0xfc2 - a.wasm!a::outer::hc089616ff9556513
    5:   0x39a3 - a.wasm!run
note: using the `WASMTIME_BACKTRACE_DETAILS=1` environment variable may show more

Caused by:
    0: wasm trap: wasm `unreachable` instruction executed
"""
WITH = """\
error while executing at wasm backtrace:
    0:   0x6c2b - panic_abort::__rust_start_panic::abort::hc9c8fc550cfa32ad
                - rust_panic
                    at /usr/src/rustc-1.85.1/library/std/src/panicking.rs:889:25
    1:    0xfc2 - index<u32, usize>
                    at /usr/src/rustc-1.85.1/library/core/src/slice/index.rs:16:9
                - deeper<u8>
                    at /home/ada/b/src/lib.rs:5:6
                - outer
                    at /home/ada/b/src/inner/more.rs:9:27
    2:   0x39a3 - run<inferlet::args::Args>
                    at /opt/sdk/rust/inferlet/src/export.rs:47:32

Caused by:
    wasm trap: wasm `unreachable` instruction executed
"""
PROGRAM = """\
use inferlet::{Args, Result};

#[inline(never)]
fn deeper(n: usize) -> usize {
    let found: Vec<usize> = (0..n).collect();
    found[n + 3]
}

#[inferlet::main]
async fn main(args: Args) -> Result<String> {
    args.finish()?;
    Ok(deeper(4).to_string())
}
"""


def test_what_is_read_and_shown() -> None:
    assert shown(read_frames(WITHOUT)) == ["a::outer × 2", "run"]
    assert shown(read_frames(WITH)) == ["deeper (src/lib.rs:5)", "outer (src/inner/more.rs:9)"]
    assert shown(read_frames("no backtrace")) == []
    only = WITHOUT.partition("    3:")[0]
    assert shown(read_frames(only))[0] == "rust_panic"


@pytest.mark.slow
def test_a_real_program(tmp_path: Path) -> None:
    use_toolchain()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/lib.rs").write_text(PROGRAM)
    (tmp_path / "Cargo.toml").write_text(
        '[package]\nname = "mine"\nversion = "0.1.0"\nedition = "2021"\n'
        '[lib]\ncrate-type = ["cdylib"]\n[dependencies]\ninferlet = "0.1"\n'
    )
    small = build_crate(tmp_path, tmp_path / "small.wasm").read_bytes()
    large = build_crate(tmp_path, tmp_path / "large.wasm", lines=True).read_bytes()
    assert len(small) < 100_000 < len(large)
    for component, source_lines, told in (
        (large, True, r"\(in deeper \(src/lib.rs:6\) < .*src/lib.rs:12\)"),
        (large, False, r"\(in mine::deeper < "),
        (small, True, r"\(in mine::deeper < "),
    ):
        with pytest.raises(GuestTrap, match=told):
            _run(component, source_lines=source_lines)


def _none(state: object, *args: object) -> None:
    """The program calls `runtime.log` alone."""


def _run(component: bytes, *, source_lines: bool) -> None:
    limits = GuestLimits(64 << 20, 10_000)
    config = EngineConfig(1, limits.memory_bytes, limits.table_elements, source_lines=source_lines)
    engine = Engine(config)
    functions = [
        HostFunction(interface, name, tuple(one.params.values()), one.result, one.fallible, _none)
        for interface, found in SIGNATURES.items()
        for name, one in found.items()
    ]
    guest = Guest(Linker(engine, functions), engine.load(component), None, limits)
    guest.start([])
    while guest.poll() is not Status.DONE:
        pass
