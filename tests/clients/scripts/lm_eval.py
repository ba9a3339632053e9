"""EleutherAI's harness, by its models for OpenAI's completions and chat, on tasks of its own."""

import math

from cases import MODEL, V1, case, run
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

TEXTS = [("The capital of Thessel is", " Argon."), ("Once upon", " a time"), ("a", " zebra")]
KEPT = {"model": MODEL, "max_retries": 1, "timeout": 120}


def completions(**more):
    return LocalCompletionsAPI(base_url=f"{V1}/completions", **KEPT, **more)


def instances(kind, arguments):
    return [Instance(kind, {}, each, at) for at, each in enumerate(arguments)]


@case()
def tokenizer():
    """The server's own, which it finds by itself."""
    model = completions()
    assert model.tokenizer_backend == "remote"
    ids = model.tok_encode(TEXTS[0][0])
    assert model.tokenizer.decode(ids) == TEXTS[0][0]
    assert isinstance(model.prefix_token_id, int)


@case()
def likelihoods():
    """Of texts and of their ids, one by one and in batches."""
    found = []
    for batch, ids in ((1, True), (3, True), (1, False)):
        model = completions(batch_size=batch, tokenized_requests=ids)
        found.append(model.loglikelihood(instances("loglikelihood", TEXTS)))
    for one, batched in zip(*found[:2], strict=True):
        assert math.isclose(one[0], batched[0], abs_tol=0.2), found
    assert all(value < 0 for value, _ in found[2])


@case()
def rolling():
    [value] = completions().loglikelihood_rolling(
        instances("loglikelihood_rolling", [("The capital of Thessel is Argon.",)])
    )
    assert value < 0


@case()
def texts():
    ask = {"until": ["\n\n"], "max_gen_toks": 12, "temperature": 0, "do_sample": False}
    wanted = instances("generate_until", [(text, dict(ask)) for text, _ in TEXTS])
    found = completions(batch_size=3).generate_until(wanted)
    alone = completions(num_concurrent=3, tokenized_requests=False)
    again = alone.generate_until(instances("generate_until", [(t, dict(ask)) for t, _ in TEXTS]))
    assert len(found) == len(again) == 3
    assert all(isinstance(text, str) for text in [*found, *again])


@case()
def chats():
    model = LocalChatCompletion(base_url=f"{V1}/chat/completions", **KEPT)
    message = JsonChatStr('[{"role": "user", "content": "Hi"}]')
    ask = {"until": ["\n\n"], "max_gen_toks": 12}
    assert len(model.generate_until(instances("generate_until", [(message, ask)]))) == 1


run()
