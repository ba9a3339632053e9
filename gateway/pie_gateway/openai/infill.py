"""Text between two others: the tokens by which families of models are asked for it.

A row is found by tokens that its models' vocabularies have. All are asked for the middle after
prefix and suffix; Codestral's after suffix and prefix, which it then continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pie_gateway.backend.job import Job
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.problems import unsupported, wrong


@dataclass(frozen=True)
class Infill:
    """A row: tokens before prefix and suffix, behind both; and those that end the middle."""

    prefix: str
    suffix: str
    middle: str = ""  # none: the suffix stands first
    ends: tuple[str, ...] = ()

    @property
    def tokens(self) -> list[str]:
        """Those that its models have."""
        return [token for token in (self.prefix, self.suffix, self.middle) if token]

    def prompt(self, before: str, after: str) -> str:
        """The prompt that the middle continues."""
        if not self.middle:
            return f"{self.suffix}{after}{self.prefix}{before}"
        return f"{self.prefix}{before}{self.suffix}{after}{self.middle}"


INFILLS = (
    # Qwen 2.5 Coder and later, CodeGemma
    Infill(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>"),
    ),
    # StarCoder, Granite Code, SmolLM
    Infill("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<|endoftext|>", "<file_sep>")),
    # DeepSeek
    Infill("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # CodeLlama
    Infill("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # GLM 4
    Infill("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    # Codestral
    Infill("[PREFIX]", "[SUFFIX]"),
)


def fill_in(
    jobs: Sequence[Job], suffix: str, model: str, stop_tokens: list[int], words: Vocabulary
) -> None:
    """Makes jobs that continue a text into such that write what stands between it and a suffix, a
    request's field of that name. The stop tokens are the model's own. Raises `Problem`: 400, the
    model has no tokens for it, or a prompt is no text.
    """
    for row in INFILLS:
        if all(words.id_of(token) is not None for token in row.tokens):
            break
    else:
        raise wrong(
            "suffix",
            f"{model} was not trained to fill in: its vocabulary has no tokens for it",
            "unsupported_model",
        )
    ends = [token for text in row.ends if (token := words.id_of(text)) is not None]
    for job in jobs:
        if job.text is None:
            raise unsupported("suffix", "it goes with a text as `prompt`")
        job.text = row.prompt(job.text, suffix)
        job.stop_tokens = [*(stop_tokens if job.stop_tokens is None else job.stop_tokens), *ends]
