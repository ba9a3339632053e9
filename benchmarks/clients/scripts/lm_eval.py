"""EleutherAI's harness, by its models for OpenAI's completions and chat."""

from cases import MODEL, V1, case, run
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
