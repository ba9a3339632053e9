"""The table of the library counts lines of code."""

from __future__ import annotations

from support.doc_scripts import load_script


def test_lines_of_programs_are_those_of_code() -> None:
    library = load_script("make_library")
    source = '"""Doc."""\n\n# note\ndef f():\n    """More\n    of it."""\n    return """a\n\nb"""\n'
    assert library.python_lines(source) == 3
    assert library.rust_lines("//! doc\nfn f() {\n\n    // note\n}\n") == 2
