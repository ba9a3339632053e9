"""Forms (multipart/form-data), read as they come."""

from __future__ import annotations

import math

from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, parse_options_header

from pie_gateway.http.admission import Exchange
from pie_gateway.http.reading import body_parts
from pie_gateway.problems import Problem

MOST_PARTS = 16
FORM = "multipart/form-data"


class Form:
    """The parts of a form by their names, in memory; `is_whole` once its end has come."""

    def __init__(self, content_type: str) -> None:
        """Takes the content's type, with its boundary. Raises `Problem`: 400, it is no form."""
        self.parts: dict[bytes, Field | File] = {}
        self.is_whole = False
        kind, facts = parse_options_header(content_type)
        if kind != FORM.encode() or b"boundary" not in facts:
            raise Problem(400, "the body is no form: multipart/form-data, with a boundary")
        self._parser = FormParser(
            kind.decode(),
            self._add,
            self._add,
            self._end,
            boundary=facts[b"boundary"],
            config={"MAX_MEMORY_FILE_SIZE": math.inf},
        )

    def write(self, data: bytes) -> None:
        """Reads on. Raises `Problem`: 400, it is no form, or has too many parts."""
        try:
            self._parser.write(data)
        except (FormParserError, AssertionError) as error:  # of a part without a name
            raise Problem(400, f"the body is no form (multipart/form-data): {error}") from None

    def text(self, name: str) -> str:
        """The value of a field that is no file, empty if there is none."""
        value = getattr(self.parts.get(name.encode()), "value", None)
        return value.decode(errors="replace") if isinstance(value, bytes) else ""

    def _add(self, part: Field | File) -> None:
        self.parts[part.field_name or b""] = part
        if len(self.parts) > MOST_PARTS:
            raise Problem(400, f"the form has more than {MOST_PARTS} parts")

    def _end(self) -> None:
        self.is_whole = True


async def read_form(exchange: Exchange) -> Form:
    """A request's form, all of it. Raises `Problem`: 400, it is none; and as `body_parts`."""
    form = Form(exchange.request.headers.get("content-type", ""))
    async for part in body_parts(exchange.request, exchange.config):
        await exchange.aside.run(exchange.user, form.write, part)
    if not form.is_whole:
        raise Problem(400, "the form (multipart/form-data) has no end")
    return form
