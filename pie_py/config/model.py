"""Settings of one model to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from pie_py.config.section import Section, check_names

EMBEDDED_MODEL = "pie-tiny"


class FlashInferConfig(Section):
    """The kernels of FlashInfer that a GPU runs."""

    prefill: Literal["auto", "fa2", "fa3"] = "auto"  # generation of the attention kernels
    decode: Literal["auto", "tensor-cores", "cuda-cores"] = "auto"  # what computes a step's
    # PyTorch's replace these: `append` stores keys and values, `norm` is for RMS norms, `rope` for
    # rotary positions, `activation` for gated MLPs.
    without: tuple[Literal["append", "norm", "rope", "activation"], ...] = ()


class ModelConfig(Section):
    """One model to serve."""

    source: str = EMBEDDED_MODEL  # a folder, .gguf file, hub id or name
    name: str | None = None  # how inferlets call it; the folder's or id's last part by default
    on_demand: bool = False  # loaded when it is first asked for, as `[on_demand]` says
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of weights; auto: the checkpoint's
    # On a CPU weights are rounded to so many bits; by default they are the checkpoint's.
    quantize: Literal["int8", "int4"] | None = None
    # The same tokens whatever else runs: slower, on a CPU, for plain decoders.
    deterministic: bool = False
    # Tokens of the longest text; what the model can by default.
    max_length: PositiveInt | None = None
    page_size: int = Field(default=16, ge=8, le=32, multiple_of=8)  # tokens a KV page
    kv_memory: PositiveInt | None = None  # bytes of KV pool; a share of free memory by default
    kv_pages: PositiveInt | None = None  # pages of KV pool; overrides kv_memory
    embeds: PositiveInt | None = None  # embeds in the pool
    # PEFT folders of LoRAs, by the names that inferlets use.
    adapters: dict[str, Path] = Field(default_factory=dict)
    host_memory: NonNegativeInt | None = None  # bytes for swapped pages; a share by default
    host_pages: NonNegativeInt | None = None  # pages for swapped ones; overrides host_memory
    max_batch_tokens: PositiveInt = 2048  # most inputs in one forward batch
    max_batch_commands: PositiveInt = 512  # most commands in one batch
    device: str = "auto"  # "cpu", "cuda", "cuda:1"; a GPU if there is one by default
    # "dummy" needs no weights: they are random, of config.json's shapes, to measure with.
    load_format: Literal["auto", "dummy"] = "auto"
    kv_dtype: Literal["auto", "fp8"] = "auto"  # of keys and values; the model's by default
    attention: Literal["auto", "flashinfer", "torch"] = "auto"  # FlashInfer where it can serve
    flashinfer: FlashInferConfig = FlashInferConfig()
    fused_sampling: bool = True  # a GPU chooses tokens with kernels of Triton's; else of PyTorch's
    # Most sequences of a decoding step that is recorded at start and replayed; 0 records none.
    graph_batch: NonNegativeInt = 256
    # Share of a GPU's memory that a server uses: weights, pools, and what computing takes.
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)

    _check_names = field_validator("adapters")(check_names)

    @property
    def called(self) -> str:
        """How inferlets call it."""
        return self.name or Path(self.source).name
