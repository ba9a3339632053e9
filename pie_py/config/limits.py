"""Limits of one instance."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from pie_py.config.section import Section


class Limits(Section):
    """What one instance may use. A breach ends it with a named error."""

    memory: PositiveInt = 256 << 20  # bytes of linear memory
    table_elements: PositiveInt = 100_000
    cpu_seconds: PositiveFloat = 60.0  # time on the control thread, all slices together
    wall_seconds: PositiveFloat = 3600.0  # life, from launch
    kv_pages: PositiveInt | None = None  # pages held; the pool by default
    host_pages: PositiveInt | None = None  # swapped pages held; the pool by default
    embeds: PositiveInt | None = None  # embeds held; the pool by default
    samplers: PositiveInt = 256  # open at once, of one model
    grammars: PositiveInt = 64  # compiled and held
    matchers: PositiveInt = 256  # open at once
    image_pixels: PositiveInt = 1 << 25  # of one image: small files may hold very many
    image_bytes: PositiveInt = 64 << 20  # of image files that are queued
    queues: PositiveInt = 256
    queued_commands: PositiveInt = 4096  # commands sent to queues and not done
    futures: PositiveInt = 4096  # open futures
    children: PositiveInt = 256  # child instances alive
    child_depth: NonNegativeInt = 8  # generations of children below an instance of a client
    message_bytes: PositiveInt = (
        2 << 20
    )  # one message between instance and client; Wasmtime lifts 2.6 MB
    mailbox_bytes: PositiveInt = 16 << 20  # messages kept for a reader that does not read
    mailbox_messages: PositiveInt = 4096
    log_lines: PositiveInt = 1000  # newest lines kept
    trace_spans: NonNegativeInt = 512  # newest waits and batches kept for `pie-py trace`; 0: none
    detached_seconds: PositiveFloat = 60.0  # life after the client that waits for it has vanished
