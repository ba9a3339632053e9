"""Guests that behave and guests that do not, each at a real server."""

from __future__ import annotations

import pytest
from support.rust_components import Run, rust_component

from pie_py.client.errors import ClientError
from pie_py.client.sync import Client


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["fail"], "^failed on purpose$"),
        (["usage"], "^usage: give another argument$"),
        (["deadlock"], "a deadlock$"),
        (["trap"], "^trap: .*aborted"),
        (["recurse"], "^trap: .*stack"),
        (["recurse-with-frames"], "^trap: out of bounds .*deeper"),
        (["no-such-mode"], "^usage: "),
    ],
)
def test_errors_reach_the_client(run: Run, arguments: list[str], reason: str) -> None:
    with pytest.raises(ClientError, match=reason):
        run("guests", *arguments)


def test_a_panic_is_in_the_log(client: Client) -> None:
    instance = client.launch(client.upload(rust_component("guests")), ["panic"])
    with pytest.raises(ClientError, match="aborted"):
        instance.result()
    lines = instance.logs()["lines"]
    assert any("on purpose" in str(line) and "bad.rs" in str(line) for line in lines), lines
