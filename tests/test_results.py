"""Pages that scripts write: measured tables are those of the records, and the library as it is."""

from __future__ import annotations

from support.doc_scripts import DOCS, load_script


def test_the_pages_hold_what_the_records_say() -> None:
    for page, text in load_script("make_results").render().items():
        written = (DOCS / page).read_text(encoding="utf-8")
        assert written == text, "run `python docs/make_results.py`"


def test_the_librarys_page_has_the_programs_as_they_are() -> None:
    library = load_script("make_library")
    assert library.PAGE.read_text(encoding="utf-8") == library.render(), (
        "run `python docs/make_library.py`"
    )
    source = '"""Doc."""\n\n# note\ndef f():\n    """More\n    of it."""\n    return """a\n\nb"""\n'
    assert library.python_lines(source) == 3
    assert library.rust_lines("//! doc\nfn f() {\n\n    // note\n}\n") == 2
