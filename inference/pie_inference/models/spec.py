"""The differences between decoders, read from config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from pie_inference.attention import AttentionOptions
from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.layers.experts import Routing
from pie_inference.layers.feed_forward import Activation, Clamp
from pie_inference.layers.rope_scaling import RopeSpec, rope_spec
from pie_inference.models.shape import ModelShape, RecurrentShape

Config = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]

ACTIVATION_NAMES: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}

LONGEST = "pie_max_length"  # in a config: the longest text to serve, if the operator says it


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """A dense block, and what its tensors are called within their layer."""

    inner: int
    bias: bool = False
    gate: str = "mlp.gate_proj"
    up: str | None = "mlp.up_proj"  # None: stored with the gate's, behind it
    down: str = "mlp.down_proj"


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Sizes of latent attention (DeepSeek-AI 2024)."""

    query_rank: int | None  # of what queries are made from; None: of the hidden state itself
    rank: int  # of the latent that keys and values are made from
    turned: int  # dimensions of a head that turn, of which all heads have one key
    plain: int  # dimensions of a head's query and key that do not turn
    value: int  # dimensions of a head's value
    bias: bool = False  # of the products that lead to query rank and latent


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """Sizes of gated delta-net layers, as Qwen 3 Next has them."""

    layers: int
    key_heads: int  # of queries and keys
    value_heads: int  # consecutive ones share a key head
    key_dim: int
    value_dim: int
    kernel: int  # tokens of the convolution, the newest included
    joined: bool  # the products are stored together, by key heads

    @property
    def inputs(self) -> dict[str, int]:
        """Products of the hidden state, and how many numbers each gives."""
        values = self.value_heads * self.value_dim
        if self.joined:
            return {"in_proj_qkvz": self.mixed + values, "in_proj_ba": 2 * self.value_heads}
        gates = dict.fromkeys(("in_proj_b", "in_proj_a"), self.value_heads)
        return {"in_proj_qkv": self.mixed, **gates, "in_proj_z": values}

    @property
    def mixed(self) -> int:
        """Numbers of all queries, keys and values of a token."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def slot_width(self) -> int:
        """Numbers that a token's slot holds: those, a strength and a step for each head."""
        return self.mixed + 2 * self.value_heads

    @property
    def order(self) -> torch.Tensor | None:
        """Where query, key, value, strength, step and gate are in what the products give.

        None if that is their order. Joined, they give for each key head its query, key, values and
        gates, and then for each its strengths and steps.
        """
        if not self.joined:
            return None
        shared = self.value_heads // self.key_heads
        values = shared * self.value_dim
        ends = (self.key_dim, 2 * self.key_dim, 2 * self.key_dim + values)
        first = torch.arange(self.key_heads * (ends[2] + values)).view(self.key_heads, -1)
        second = first.numel() + torch.arange(2 * self.value_heads).view(self.key_heads, -1)
        query, key, value, gate = (part.flatten() for part in first.tensor_split(ends, 1))
        strength, step = (part.flatten() for part in second.chunk(2, 1))
        return torch.cat([query, key, value, strength, step, gate])


@dataclass(frozen=True, slots=True)
class StackedNames:
    """Names of a layer's tensors that hold what all its experts have, `[experts, ...]` each."""

    gate_up: str
    down: str
    transposed: bool = False  # `[experts, in, out]`, not `[experts, out, in]`
    alternating: bool = False  # a number of the gate, then one of up


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts; `{}` in the names of an expert's tensors is its number."""

    experts: int
    inner: int
    routing: Routing
    bias: bool = False  # of the experts
    router_bias: bool = False
    clamp: Clamp | None = None  # of the experts, in the place of the activation
    router: str = "mlp.gate"
    gate: str = "mlp.experts.{}.gate_proj"
    up: str | None = "mlp.experts.{}.up_proj"  # None: stored with the gate's, behind it
    down: str = "mlp.experts.{}.down_proj"
    stacked: StackedNames | None = None  # where a checkpoint has the experts' tensors together
    shared: MlpSpec | None = None  # every token goes through it, too
    shared_gate: str | None = "mlp.shared_expert_gate"  # weighs that; None: as it is

    def __post_init__(self) -> None:
        """Raises `LoadError` if a token cannot go through so many experts."""
        routing = self.routing
        room = self.experts * routing.chosen_groups // routing.groups
        if self.experts % routing.groups or routing.chosen > room:
            raise LoadError(
                f"config.json: {routing.chosen} experts a token, but there are {room}"
                + (f" in {routing.chosen_groups} groups" if routing.groups > 1 else "")
            )

    def expert(self, number: int) -> MlpSpec:
        """One of the experts."""
        gate, down = self.gate.format(number), self.down.format(number)
        up = None if self.up is None else self.up.format(number)
        return MlpSpec(self.inner, self.bias, gate, up, down)


Block = MlpSpec | ExpertsSpec


def stacked_experts(names: StackedNames, router: str, **more: Any) -> ExpertsSpec:
    """Experts whose tensors a checkpoint has together; for arguments see `ExpertsSpec`."""
    gate_up, down = (name.removesuffix(".weight") for name in (names.gate_up, names.down))
    return ExpertsSpec(
        router=router,
        gate=f"{gate_up}.{{}}",
        up=None,
        down=f"{down}.{{}}",
        stacked=names,
        **more,
    )


class NormNames(NamedTuple):
    """The names of a layer's norms; None where there is none."""

    before_attention: str = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str | None = None


BOTH_SIDES = NormNames(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder: norms, rotary grouped-query attention, feed-forward blocks, and variants."""

    shape: ModelShape
    epsilon: float  # of the norms
    feed_forward: tuple[Block, ...]  # a layer each
    ropes: tuple[RopeSpec, ...]
    layer_rope: tuple[int | None, ...]  # which of the ropes, a layer each; None: positions unseen
    activation: Activation
    tied: bool  # the embedding is the head, too
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention
    fixed_rows: bool = False  # rows of products are independent (layers/fixed_rows.py)
    query_key_norm: bool = False  # of every head's query and key
    interleaved: bool = False  # the planes that turn are neighbouring dimensions
    latent: LatentSpec | None = None  # in the place of grouped-query attention
    delta: DeltaSpec | None = None
    recurrent: tuple[bool, ...] = ()  # a layer each: whether it is a delta net; empty: none is
    output_gate: bool = False  # queries bring a gate of what they attend to
    attention_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")  # one: stored as one
    norm_offset: float = 0.0  # is added to the weights of norms
    norms: NormNames = NormNames()  # noqa: RUF009 - a tuple, which nothing changes
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and feed-forward add
    logit_scale: float = 1.0
    logit_softcap: float | None = None  # logits `z` become `softcap * tanh(z / softcap)`


def decoder_spec(
    config: Config,
    *,
    head_dim: int | None = None,
    rope_base: float = 10_000.0,
    tied: bool = False,
    activation: str | None = None,
    windows: Sequence[int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    feed_forward: Block | Sequence[Block] | None = None,
    partial: float | None = None,
    epsilon: float = 1e-6,
    biased: bool | None = None,
    **more: Any,
) -> DecoderSpec:
    """Reads what all families have from config.json; `more` are fields of `DecoderSpec`.

    `windows`, of each layer, `scale`, `softcap` and `sinks` are those of `AttentionOptions`. The
    others are defaults of the configuration's own fields:

    - `head_dim`: without it, the hidden size is divided among the heads.
    - `rope_base` of `rope_theta`, `tied` of `tie_word_embeddings`, `epsilon` of `rms_norm_eps`.
    - `activation` in the place of `hidden_act`.
    - `feed_forward` of all layers, or one for each: else dense, of `intermediate_size`.
    - `partial` of `partial_rotary_factor`; None for a family that turns whole heads.
    - `biased` of `attention_bias`; None for a family that does not have it.

    Raises `LoadError` if a value lacks, is of the wrong kind, or does not fit the others.
    """
    fields = Fields(config)
    activation = activation or fields.text("hidden_act", "silu")
    if activation not in ACTIVATION_NAMES:
        raise LoadError(
            f"config.json: activation {activation!r} is not supported"
            f" (supported: {', '.join(ACTIVATION_NAMES)})"
        )
    layers = fields.count("num_hidden_layers")
    hidden, heads, kv_heads, dim = _head_sizes(fields, head_dim)
    rope = _rope(config, dim, rope_base, partial)
    if feed_forward is None:
        feed_forward = MlpSpec(fields.count("intermediate_size"))
    blocks = feed_forward if isinstance(feed_forward, Sequence) else [feed_forward] * layers
    if biased is not None:
        bias = fields.flag("attention_bias", biased)
        more = {"qkv_bias": bias, "output_bias": bias, **more}
    shape = ModelShape(
        attention=tuple(
            AttentionOptions(scale, softcap, window, sinks)
            for window in (windows if windows is not None else [None] * layers)
        ),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        vocab_size=fields.count("vocab_size"),
        max_position=rope.positions,
    )
    return DecoderSpec(
        shape=shape,
        epsilon=fields.number("rms_norm_eps", epsilon),
        feed_forward=tuple(blocks),
        ropes=(rope,),
        layer_rope=more.pop("layer_rope", (0,) * layers),
        activation=ACTIVATION_NAMES[activation],
        tied=fields.flag("tie_word_embeddings", tied),
        **more,
    )


def _rope(config: Config, head_dim: int, base: float, partial: float | None) -> RopeSpec:
    fields = Fields(config)
    # Transformers 5 writes `rope_parameters`; earlier ones `rope_theta` and `rope_scaling`.
    turning = fields.table("rope_parameters") or fields.table("rope_scaling")
    named = {"partial_rotary_factor": partial, "original_max_position_embeddings": None}
    for name, default in named.items():  # some write them next to the table
        if (value := config.get(name, default)) is not None:
            turning = {name: value, **turning}
    if partial is None and turning.get("partial_rotary_factor", 1.0) != 1.0:
        raise LoadError(
            "config.json: partial_rotary_factor other than 1 is not supported for this architecture"
        )
    return rope_spec(
        turning,
        head_dim=head_dim,
        base=fields.number("rope_theta", base),
        trained=fields.count("max_position_embeddings", 2048),
        longest=fields.optional_count(LONGEST, None),
    )


def _head_sizes(fields: Fields, default: int | None) -> tuple[int, int, int, int]:
    """Hidden size, heads of queries and of keys, and their size, which must fit each other."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    head_dim = fields.count("head_dim", default or hidden // heads)
    if heads % kv_heads:
        raise LoadError(
            f"config.json: {heads} attention heads do not divide among {kv_heads} kv heads"
        )
    if head_dim % 2:
        raise LoadError(f"config.json: rotary embedding needs an even head_dim, not {head_dim}")
    return hidden, heads, kv_heads, head_dim


def with_states(spec: DecoderSpec, delta: DeltaSpec, recurrent: Sequence[bool]) -> DecoderSpec:
    """The same decoder, some of whose layers are delta nets. Raises `LoadError` if its heads do not
    divide, or no layer has attention.
    """
    if delta.value_heads % delta.key_heads:
        raise LoadError(
            f"config.json: {delta.value_heads} value heads do not divide among"
            f" {delta.key_heads} key heads"
        )
    options = zip(spec.shape.attention, recurrent, strict=True)
    attention = tuple(option for option, instead in options if not instead)
    if not attention or not delta.layers:
        raise LoadError("config.json: 'layer_types' has layers of one kind only")
    shape = RecurrentShape(
        layers=delta.layers,
        width=delta.slot_width,
        history=delta.kernel - 1,
        heads=delta.value_heads,
        key_dim=delta.key_dim,
        value_dim=delta.value_dim,
    )
    return replace(
        spec,
        shape=replace(spec.shape, attention=attention, recurrent=shape),
        delta=delta,
        recurrent=tuple(recurrent),
    )


def window_in_use(fields: Fields, default: int | None) -> int | None:
    """`sliding_window`, if `use_sliding_window` is set; else whatever is written there is none."""
    if not fields.flag("use_sliding_window", False):
        return None
    return fields.optional_count("sliding_window", default)


def layer_windows(
    config: Config, window: int | None, default: Sequence[bool] | None = None
) -> list[int | None]:
    """Windows of the layers, by `layer_types`; without it, of those where `default` is true, or of
    all. Raises `LoadError` as `layers_of_kind`.
    """
    fields = Fields(config)
    sliding = layers_of_kind(fields, "sliding_attention") or default
    if sliding is None:
        sliding = [True] * fields.count("num_hidden_layers")
    return [window if slides else None for slides in sliding]


def layers_of_kind(fields: Fields, kind: str) -> list[bool] | None:
    """Which layers are of that kind by `layer_types`; None without it. Raises `LoadError` if the
    others are not `full_attention`, or there are too few or many.
    """
    layers, types = fields.count("num_hidden_layers"), fields.items("layer_types")
    if types is None:
        return None
    if len(types) != layers or any(t not in (kind, "full_attention") for t in types):
        raise LoadError(
            f"config.json: 'layer_types' is not {layers} times 'full_attention' or '{kind}':"
            f" {types}"
        )
    return [t == kind for t in types]
