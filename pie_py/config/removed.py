"""Settings of earlier versions, which files and variables may still name."""

from __future__ import annotations

from collections.abc import Iterable

# What holds instead, by the places of a configuration.
REMOVED = {
    "futures": "131072 may be open at once",
    "message_bytes": "1 GiB of messages may wait",
    "max_program_bytes": "a program has 256 MiB at most",
    "result_seconds": "results are kept for a day",
    "models.cuda_graphs": "`graph_batch = 0` records no steps",
    "models.flashinfer.append": '`without = ["append"]` leaves kernels out',
    "models.flashinfer.norm": '`without = ["norm"]` leaves kernels out',
    "models.flashinfer.rope": '`without = ["rope"]` leaves kernels out',
    "models.flashinfer.activation": '`without = ["activation"]` leaves kernels out',
    "models.flashinfer.workspace": "it is 256 MiB, or more where a model needs more",
    "limits.table_elements": "tables have 100000 elements at most",
    "limits.matchers": "256 may be open at once",
    "limits.image_bytes": "64 MiB of image files may be queued",
    "limits.mailbox_messages": "4096 are kept, as far as `mailbox_bytes` goes",
    "limits.image_pixels": "images of 2^25 pixels are taken",
    "limits.trace_spans": "the newest 512 are kept",
    "limits.log_lines": "the newest 1000 are kept",
    "interception.low_water": "a tenth of the pages is kept free",
    "interception.swap_share": "transfers ahead of need take a quarter of a step",
    "http.max_timeout_seconds": "600 s is the most that a program may ask for",
    "http.connect_seconds": "a host has 10 s",
    "http.redirects": "5 are followed",
    "http.header_bytes": "32 KiB is the most",
    "http.request_bytes": "2 MiB is the most",
    "http.response_bytes": "64 MiB is the most",
    "http.user_concurrent": "64 requests of a user may be under way",
    "http.connections": "512 is the most",
    "http.burst": "100 requests may be made at once after a rest",
    "mcp.concurrent": "16 calls of an instance may be under way",
    "mcp.user_concurrent": "64 calls of a user may be under way",
    "messaging.idle_bytes": "64 MiB stay of users without an instance",
    "grammar.threads": "2 compile, one of them for one user",
    "grammar.user_compilations": "64 of a user may be under way",
    "grammar.kept": "128 compiled grammars are kept",
    "grammar.kept_characters": "texts of 4 Mi characters are kept",
    "recording.bytes_each": "a record has 256 MiB at most",
    "telemetry.service": "the collector knows the server as pie_py",
    "telemetry.spans": "the 16 longest of an instance are told",
}


def removed(place: Iterable[int | str]) -> str | None:
    """An answer to the name of a removed setting; None to any other."""
    found = REMOVED.get(".".join(part for part in place if isinstance(part, str)))
    return None if found is None else f"no such setting any more; {found}"
