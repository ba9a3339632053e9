"""Checkpoints that say what they are told: their weights hold which token follows which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|eos|>"


def make_told(
    folder: Path,
    follows: Mapping[str, str | Sequence[str]],
    template: str,
    markers: Sequence[str] = (),
    *,
    special: bool = False,
    longest: int = 2048,
) -> None:
    """A checkpoint whose greedy text is a chain of tokens: `follows` has what may come after each,
    the likeliest first; after others the text ends. `markers` are tokens, `special` or not. Texts
    are as long as the `longest` at most.
    """
    tokenizer = Tokenizer(models.BPE(vocab=_bytes(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.add_tokens([AddedToken(each, special=special, normalized=False) for each in markers])
    rows = {a: [b] if isinstance(b, str) else b for a, b in follows.items()}
    texts = dict.fromkeys(text for a, row in rows.items() for text in [a, *row])
    added = [text for text in texts if tokenizer.token_to_id(text) is None]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    ids = tokenizer.get_vocab()
    model = _model(len(ids), ids[END], longest)
    with torch.no_grad():
        for before, token in ids.items():
            for rank, text in enumerate(rows.get(before, [END])):
                logit = (40.0 - rank) / model.config.hidden_size**0.5  # of a normed one-hot vector
                model.lm_head.weight[ids[text], token] = logit
    model.save_pretrained(folder)
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    whole.chat_template = template
    whole.save_pretrained(folder)


def _bytes() -> dict[str, int]:
    return {each: at for at, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def _model(size: int, end: int, longest: int) -> LlamaForCausalLM:
    """Its layer adds nothing, so that the logits are a table of the last token."""
    wide = -(-size // 64) * 64
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=wide,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=longest,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=end,
        )
    )
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight[:, :size] = torch.eye(size)
    return model.to(torch.float32)
