"""The component that travels with the package is what its sources build."""

from __future__ import annotations

import pytest
from support.rust_components import use_toolchain

from codegen.components import COMPILER, COMPONENTS, build, compiler
from codegen.source import REPOSITORY


@pytest.mark.slow
@pytest.mark.parametrize("path", COMPONENTS)
def test_component_is_what_its_sources_build(path: str) -> None:
    use_toolchain()
    if compiler() != (REPOSITORY / COMPILER).read_text().strip():
        pytest.skip("another compiler makes other bytes")
    built = build(REPOSITORY / COMPONENTS[path])
    assert built == (REPOSITORY / path).read_bytes(), "run `python -m codegen.components`"
