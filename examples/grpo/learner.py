"""The learner: a LoRA on a frozen model in plain PyTorch, and the loss of GRPO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

from examples.cml_lora.lora import load_model, with_new_adapter
from examples.grpo.rollouts import Group

CLIP = 0.2  # a ratio further from 1 than this moves a token no further
RATE = 1e-4  # of learning; at 1e-3 all answers to a question are alike after two steps


class Learner:
    """Weights of an adapter, and the optimizer that moves them."""

    def __init__(self, checkpoint: Path, rank: int = 8) -> None:
        """Takes a GGUF file or a folder of safetensors; the adapter changes nothing yet.

        All is float32: ratios divide two probabilities, and bfloat16 would round both.
        """
        torch.manual_seed(0)
        self.model: PeftModel = with_new_adapter(load_model(checkpoint, torch.float32), rank)
        weights = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)

    def learn(self, groups: Sequence[Group]) -> float:
        """One step; returns how far the learner's log-probabilities are from those with which the
        answers were chosen, the mean of the distances in nats.
        """
        logprobs = self._logprobs(groups)
        chosen = [torch.tensor(each.logprobs) for group in groups for each in group.samples]
        advantages = [each for group in groups for each in _advantages(group)]
        terms = []
        for new, old, advantage in zip(logprobs, chosen, advantages, strict=True):
            ratio = (new - old).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            terms.append(torch.minimum(ratio * advantage, clipped * advantage))
        self._optimizer.zero_grad()
        (-torch.cat(terms).mean()).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return (torch.cat(logprobs).detach() - torch.cat(chosen)).abs().mean().item()

    def _logprobs(self, groups: Sequence[Group]) -> list[torch.Tensor]:
        """Of each sample `[tokens]`, in nats. Padding is at the right, where nothing sees it."""
        rows = [(g.prompt, each.tokens) for g in groups for each in g.samples]
        width = max(len(prompt) + len(tokens) for prompt, tokens in rows)
        padded = [
            [*prompt, *tokens, *[0] * (width - len(prompt) - len(tokens))]
            for prompt, tokens in rows
        ]
        inner = self.model.get_base_model()
        hidden = inner.model(input_ids=torch.tensor(padded), use_cache=False).last_hidden_state
        found = []
        for row, (prompt, tokens) in zip(hidden, rows, strict=True):
            before = row[len(prompt) - 1 : len(prompt) + len(tokens) - 1]
            every = inner.lm_head(before).log_softmax(-1)
            found.append(every.gather(-1, torch.tensor(tokens)[:, None])[:, 0])
        return found

    def save_adapter(self, folder: Path) -> Path:
        """Writes the adapter as PEFT does; returns the folder."""
        self.model.save_pretrained(str(folder), save_embedding_layers=False)
        return folder

    def state(self) -> dict[str, object]:
        """All that a later run needs to go on."""
        weights = get_peft_model_state_dict(self.model)
        return {"adapter": weights, "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, dict[str, object]]) -> None:
        """Goes on from a state."""
        set_peft_model_state_dict(self.model, state["adapter"])
        self._optimizer.load_state_dict(state["optimizer"])


def _advantages(group: Group) -> list[float]:
    """How much better than the group's mean each sample is, in standard deviations (Shao et al.,
    DeepSeekMath, 2024, section 4.1.2).
    """
    rewards = torch.tensor([each.reward for each in group.samples])
    found: list[float] = ((rewards - rewards.mean()) / (rewards.std() + 1e-4)).tolist()
    return found
