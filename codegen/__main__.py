"""`python -m codegen` makes the generated files, and `docs/pie.toml`, which git has."""

from __future__ import annotations

from codegen import REPOSITORY, ensure


def main() -> None:
    """Writes those that are not up to date, and tells which."""
    for path in ensure():
        print(f"wrote {path}")
    from codegen import config_file  # which needs pie_py's dependencies

    page = REPOSITORY / config_file.PATH
    if page.read_text(encoding="utf-8") != (text := config_file.render()):
        page.write_text(text, encoding="utf-8")
        print(f"wrote {config_file.PATH}")


if __name__ == "__main__":
    main()
