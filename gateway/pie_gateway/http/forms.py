"""Forms with one file (multipart/form-data), read as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pie_gateway.problems import Problem

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MOST_PARTS = 16
MOST_TEXT = 4096  # bytes of a field that is no file


class Form:
    """A form of which the parts arrive one by one.

    Attributes:
        file: the file's name; None until it comes.
        content: of the file.
        texts: of the other fields.
        is_whole: its end has come.
    """

    def __init__(self, kind: str, file: str) -> None:
        """Takes the type of the content, with its boundary, and the name of the file's field.
        Raises `Problem`: 400, it is no form.
        """
        self.file: str | None = None
        self.content = bytearray()
        self.texts: dict[str, str] = {}
        self.is_whole = False
        self._of_file = file
        self._name, self._part = "", bytearray()
        self._header, self._value, self._facts = b"", b"", b""
        self._parts = 0
        _, facts = parse_options_header(kind)
        callbacks: MultipartCallbacks = {
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_head,
            "on_part_data": self._on_data,
            "on_part_end": self._on_part,
            "on_end": self._on_end,
        }
        try:
            self._parser = MultipartParser(facts[b"boundary"], callbacks)
        except (KeyError, FormParserError):
            text = "the body is no form (multipart/form-data with a boundary)"
            raise Problem(400, text) from None

    def write(self, data: bytes) -> None:
        """Reads on. Raises `Problem`: 400, it is no form, or has more than one."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise Problem(400, f"the body is no form (multipart/form-data): {error}") from None

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._facts = self._value
        self._header = self._value = b""

    def _on_head(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise Problem(400, f"the form has more than {MOST_PARTS} parts")
        _, facts = parse_options_header(self._facts)
        self._facts = b""
        self._name = facts.get(b"name", b"").decode(errors="replace")
        is_file = self._name == self._of_file
        if is_file:
            if self.file is not None:
                raise Problem(400, f"`{self._name}`: one file at a time", param=self._name)
            self.file = facts.get(b"filename", b"file").decode(errors="replace")
        self._part = self.content if is_file else bytearray()

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._part += data[start:end]
        if self._part is not self.content and len(self._part) > MOST_TEXT:
            text = f"`{self._name[:100]}`: more than {MOST_TEXT} bytes"
            raise Problem(400, text, param=self._name[:100])

    def _on_end(self) -> None:
        self.is_whole = True

    def _on_part(self) -> None:
        if self._part is not self.content:
            self.texts[self._name] = self._part.decode(errors="replace")
