"""A checkpoint that says what it is told: its layers add nothing, and each token has its next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|end|>"


def make_scripted(
    folder: Path, scripts: Sequence[Sequence[str]], template: str, markers: Sequence[str] = ()
) -> Path:
    """Writes a Llama that goes on from the last token of its prompt as a script does.

    Args:
        folder: where; made if it does not exist.
        scripts: each a list of texts, the first of which ends the prompt. A text is one token, and
            stands in one place of all scripts.
        template: the chat template.
        markers: texts that are special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: at for at, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in [END, *markers]])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for texts in scripts for t in texts])
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(END)
    following = [end] * size
    for texts in scripts:
        for token, then in pairwise(tokenizer.encode("".join(texts)).ids):
            following[token] = then
    hidden = -(-size // 64) * 64
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=hidden,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            head_dim=16,
            max_position_embeddings=1 << 17,
            bos_token_id=None,
            eos_token_id=end,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight[:, :size] = torch.eye(size)
        model.lm_head.weight[following, range(size)] = 4.0
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder
