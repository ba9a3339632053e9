"""Says if a model can be served, by its files' heads: `python -m ... MODEL`, or `--families`."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from functools import partial

from pie_inference.checkpoints.loader import checked_sources, checkpoint_folder, read_config
from pie_inference.errors import LoadError
from pie_inference.loading.encoders import check_encoder, encoder_of
from pie_inference.loading.network import arranged, damaged
from pie_inference.models.by_transformers.load import check as check_general
from pie_inference.models.registry import ARCHITECTURES, architecture_of, families, with_head
from pie_py.config.logs import LogConfig, set_up_logs


def check(source: str) -> None:
    """Downloads the model if it is a hub id, and reads its configuration, and which tensors it has.
    Raises `LoadError` if it cannot be served.
    """
    folder = checkpoint_folder(source)
    said = read_config(folder)
    if (encoder := encoder_of(said)) is not None:
        check_encoder(encoder, said, folder)
        return
    checkpoint = with_head(said)
    name = architecture_of(checkpoint)
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        check_general(name, checkpoint, folder)
        return
    arrange = partial(arranged, architecture, checkpoint)
    with ExitStack() as opened:
        checked_sources(folder, architecture.tensors(checkpoint), arrange, opened)


if __name__ == "__main__":
    set_up_logs(LogConfig())
    if sys.argv[1:] == ["--families"]:
        print(json.dumps([{"family": name, "code": code} for name, code in families().items()]))
        sys.exit()
    try:
        check(sys.argv[1])
    except LoadError as error:
        sys.exit(f"error: {error}")
    except Exception as error:  # noqa: BLE001  of a reader, whose sentence it gets
        sys.exit(f"error: {damaged(sys.argv[1], error)}")
