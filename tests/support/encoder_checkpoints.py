"""Checkpoints of encoders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "cats",
    "purr",
    "paris",
    "is",
    "the",
    "capital",
    "of",
    "france",
    "tax",
    "law",
]
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def make_bert(folder: Path, kind: str = "BertModel", labels: int = 2) -> Path:
    """Writes a random BERT with a WordPiece tokenizer into a folder; one with three labels has no
    types of pairs.
    """
    vocabulary = {word: at for at, word in enumerate([*MARKS, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if labels < 3 else [])]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", model_input_names=names
    )
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=labels,
    )
    module = getattr(transformers, kind)(config).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    module.save_pretrained(folder)
    modules = [{"type": "st.Transformer", "path": ""}, {"type": "st.Normalize", "path": "1"}]
    if kind == "BertModel":
        (folder / "modules.json").write_text(json.dumps(modules))
    return folder
