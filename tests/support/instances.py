"""Real instances and the parts that they reach, without Wasm and without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from pie_control.errors import ApiError
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_py.config.server import ServerConfig
from pie_py.config.services import MessagingConfig, StoreConfig
from support.rig import Rig


class Instances(Rig):
    """Launches and ends instances whose guests are the tests."""

    def __init__(self, **messaging: Any) -> None:
        super().__init__(ServerConfig(messaging=MessagingConfig(**messaging)))


def with_store(folder: Path, **config: Any) -> Rig:
    """Instances with a store of their own; its task must run before the first operation."""
    return Rig(ServerConfig(data_folder=folder, store=StoreConfig(**config)))


@contextmanager
def failure(code: str, *words: str) -> Iterator[pytest.ExceptionInfo[ApiError]]:
    """Expects an error of this code whose message has these words."""
    with pytest.raises(ApiError) as error:
        yield error
    assert error.value.code == code
    for word in words:
        assert word in error.value.message


def is_ready(instance: Instance, handle: int) -> bool:
    return instance.futures.get(handle).ready


async def until_ready(instance: Instance, handle: int) -> None:
    """Waits for a future, without taking it."""
    woken = trio.Event()
    instance.futures.announce = lambda ready: woken.set() if ready == handle else None
    if not is_ready(instance, handle):
        with trio.fail_after(30):
            await woken.wait()


def take(instance: Instance, handle: int) -> Any:
    return instance.futures.take(handle, instance.futures.get(handle).kind)


def take_text(instance: Instance, handle: int) -> str:
    text: str = instance.futures.take(handle, FutureKind.TEXT)
    return text
