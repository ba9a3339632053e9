"""Bodies of answers: read on demand, unpacked within bounds."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import trio

from pie_control.errors import ApiError


class GzipDecoder:
    """Unpacks gzip lazily: a gzip bomb costs no more than what is read of it."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._packed = b""
        self._begun = False

    def feed(self, data: bytes) -> None:
        """Takes packed bytes in."""
        self._packed += data

    @property
    def has_input(self) -> bool:
        """Whether `read` may have more to give."""
        return bool(self._packed)

    def read(self, most: int) -> bytes:
        """At most `most` unpacked bytes, of one member; perhaps none.

        Raises:
            ApiError: `remote-failed` if it is no gzip.
        """
        self._begun = True
        try:
            data = self._member.decompress(self._packed, most)
        except zlib.error as error:
            raise ApiError("remote-failed", f"the body is no gzip: {error}") from None
        self._packed = self._member.unconsumed_tail
        if self._member.eof:  # another member may follow (RFC 1952, section 2.2)
            self._packed = self._member.unused_data
            self._member = zlib.decompressobj(wbits=31)
            self._begun = False
        return data

    def finish(self) -> None:
        """The input has ended.

        Raises:
            ApiError: `remote-failed` if it ended too early.
        """
        if self._begun:
            raise ApiError("remote-failed", "the gzip body ends in the middle")


class Body:
    """The bytes of one answer, in pieces."""

    def __init__(self, chunks: AsyncIterator[bytes], limit: int, *, gzip: bool) -> None:
        self._chunks = chunks
        self._limit = limit
        self._count = 0
        self._left = b""
        self._gzip = GzipDecoder() if gzip else None

    async def read(self, most: int) -> bytes:
        """The next bytes, at least one and at most `most`; none at the end.

        Raises:
            ApiError: `limit-exceeded` over the limit, `remote-failed`; and what the chunks raise.
        """
        while True:
            if self._gzip is None:
                data, self._left = self._left[:most], self._left[most:]
            else:
                data = self._gzip.read(most) if self._gzip.has_input else b""
            if data:
                return self._counted(data)
            # Pieces that hold nothing may come without an end, and all at once.
            await trio.lowlevel.checkpoint()
            if self._gzip is not None and self._gzip.has_input:
                continue
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                if self._gzip:
                    self._gzip.finish()
                return b""
            if self._gzip:
                self._gzip.feed(chunk)
            else:
                self._left = chunk

    def _counted(self, data: bytes) -> bytes:
        self._count += len(data)
        if self._count > self._limit:
            raise ApiError(
                "limit-exceeded",
                f"the body has more than {self._limit} bytes, the most that this server takes"
                " (`response_bytes` in [http] of its configuration)",
            )
        return data
