"""Programs that call tools, talk to each other, and think in parts."""

from __future__ import annotations

import json
import uuid
from itertools import product

import pytest
from support.library import LIBRARY, Library

from pie_py.client.errors import InferletFailed

APIS = ["play_man~48(text)", "recress_roof~19(rank)", "cook_plan~73(colour)"]
REQUEST = '- play_man with text "strazyrt".\n- recress_roof with rank 7.'
# 36 tools, of which four are called. Among twice as many pie-tiny calls wrong ones, or writes
# nonsense to its limit.
VERBS = ("find", "read", "write", "open")
NOUNS = ("file", "room", "flight", "hotel", "taxi", "train", "ticket", "note")
CALLED = ["fetch_weather", "book_table", "send_mail", "pay_bill"]
TOOLBOX: dict[str, object] = {
    "apis": [
        "fetch_weather~35(city)",
        "book_table~73(colour)",
        "send_mail~48(text)",
        "pay_bill~19(rank)",
        *(f"{verb}_{noun}~20(text)" for verb, noun in product(VERBS, NOUNS)),
    ],
    "request": """- fetch_weather with city "Swoosuk".
- book_table with colour "red".
- send_mail with text "strazyrt".
- pay_bill with rank 7.""",
}


def test_react_calls_tools_and_computes_no_token_twice(library: Library, url: str) -> None:
    before = library.rows()
    question = "Where does the neighbour of the brother of Edgar live?"
    found = library.run("react", question=question, url=url)
    assert found["answer"] == "Dublin"
    assert [call.rpartition(": ")[2] for call in found["calls"]] == ["Sam", "Sovut", "Dublin"]
    # A step ahead is lost after each of nine lines; the conversation again at each action would be
    # 400 tokens more.
    assert library.rows() - before <= 3 * (found["tokens"] + 9)


def test_code_act_runs_the_models_code_in_its_own_sandbox(library: Library) -> None:
    numbers = "[1-9][0-9]{0,3}"
    before = library.rows()
    found = library.run("code_act", grammar=rf"print\({numbers} [-+*] {numbers}\)\n")
    assert found["answer"].lstrip("-").isdigit()
    assert library.rows() - before <= 3 * found["tokens"]  # each once
    # An error is an observation, after which the model tries again; there is no file to read.
    with pytest.raises(InferletFailed, match=r"none of the model's 2 pieces.*no file system"):
        library.run("code_act", grammar=r"open\('/etc/passwd'\)\n", steps=2)


def test_a_swarm_passes_messages_and_computes_each_once(library: Library) -> None:
    library.client.upload(LIBRARY / "swarm/main.py", name="swarm")
    before = library.rows()
    found = library.run("swarm", agents=["ada", "bob"], rounds=4, max_tokens=6)
    assert [set(said) for said in found["said"]] == [{"ada", "bob"}] * 4
    # Each agent holds what it heard and said: its context goes on from round to round. Beside its
    # tokens a step ahead is lost in each; all again in each round would be twice as many.
    tokens = sum(found["tokens"].values())
    assert library.rows() - before <= 3 * (tokens + 2 * 4)


def test_a_swarm_ends_with_the_error_of_an_agent(library: Library) -> None:
    with pytest.raises(InferletFailed, match=r"not-found: .*nosuch"):
        library.launch("swarm", ["--program", "nosuch"], agents=["ada", "bob"]).result()


def test_optimizations_of_an_agent_stack(library: Library, url: str) -> None:
    apis = [*APIS, f"f{uuid.uuid4().hex[:6]}~19(rank)"]
    flags: list[list[str]] = [[], ["--cache"], ["--cache"], ["--cache", "--early", "--drop"]]
    found = [
        json.loads(library.launch("api_agent", one, apis=apis, url=url, request=REQUEST).result())
        for one in flags
    ]
    assert all(one["answer"] == 'Done. a: "ladder", b: "ladder".' for one in found)
    assert all(one["calls"] == ["play_man", "recress_roof"] for one in found)
    assert found[1]["computed"] == found[0]["computed"]
    assert found[2]["computed"] < 0.8 * found[1]["computed"]
    assert [one["hidden"] > 10 for one in found] == [False, False, False, True]


def test_a_toolbox_is_one_that_the_model_can_use(library: Library, url: str) -> None:
    found = library.run("api_agent", url=url, **TOOLBOX)
    assert found["calls"] == CALLED
    assert found["answer"].startswith("Done.")


def test_agents_at_once_may_all_compute_the_documents(library: Library, url: str) -> None:
    apis = [*APIS, f"f{uuid.uuid4().hex[:6]}~19(rank)"]
    options: dict[str, object] = {"apis": apis, "url": url, "request": REQUEST}
    launched = [library.launch("api_agent", ["--cache"], **options) for _ in range(3)]
    answers = {json.loads(one.result())["answer"] for one in launched}
    assert answers == {'Done. a: "ladder", b: "ladder".'}


@pytest.mark.nightly
def test_graphs_and_recursions_of_thought_add_what_one_try_does_not(library: Library) -> None:
    numbers = [12, 34, 56, 78, 11, 23, 45, 67]
    asked = " + ".join(map(str, numbers))
    begin = f"<|begin|><|user|>\nWhat is {asked}?<|end|>\n<|assistant|>\n"
    assert f"Answer: {sum(numbers)}" not in library.complete(begin, 160)
    before = library.forwards()
    graph = library.run("graph_of_thought", numbers=numbers)
    forwards, batches = (b - a for a, b in zip(before, library.forwards(), strict=True))
    assert batches < 0.4 * forwards
    assert graph["answer"] == sum(numbers)
    assert [len(level) for level in graph["levels"]] == [8, 4, 2, 1]
    before = library.forwards()
    recursion = library.run("recursion_of_thought", numbers=numbers)
    forwards, batches = (b - a for a, b in zip(before, library.forwards(), strict=True))
    assert recursion == {"answer": sum(numbers), "depth": 3}
    assert batches < 0.75 * forwards


def test_a_skeleton_is_expanded_at_once_and_joined(library: Library) -> None:
    before = library.forwards()
    found = library.run("skeleton_of_thought", points=4, max_tokens=10)
    forwards, batches = (b - a for a, b in zip(before, library.forwards(), strict=True))
    assert len(found["points"]) == len(found["texts"]) == 4
    assert (
        batches < forwards - 10
    )  # the points' tokens came together, some of them on a busy machine
    assert found["pages"] < 0.8 * found["alone"]


def test_thinking_keeps_to_its_budget(library: Library) -> None:
    free = library.run("thinking_budget")
    assert free["answer"] == "85"
    cut = library.run("thinking_budget", at_most=12)
    assert cut["tokens"] == 12
    assert cut["answer"] != "85"
    longer = library.run("thinking_budget", at_least=free["tokens"] + 5, at_most=120)
    assert longer["waits"] >= 1
    assert free["tokens"] + 5 <= longer["tokens"] <= 120


def test_tool_calls_are_valid_at_any_temperature(library: Library) -> None:
    assert library.run("constrained_tools")["result"] == 42
    for seed in range(3):
        found = library.run("constrained_tools", temperature=2, seed=seed, max_tokens=200)
        assert found["call"]["name"] in ("add", "set_colour")


def test_retrieval_answers_from_the_best_text_and_keeps_it_computed(
    library: Library, url: str
) -> None:
    with pytest.raises(InferletFailed, match="no texts are stored: add some with `--add`"):
        library.run("retrieval", question="Where does Kurt live?")
    texts = ["Kurt lives in Swoosuk. Kurt is 30 years old.", "Alma has a pet hen. Alma likes red."]
    assert library.run("retrieval", add=texts)["texts"] == 2
    first = library.run("retrieval", question="Where does Kurt live?")
    again = library.run("retrieval", question="Where does Kurt live?")
    assert first["source"] == texts[0]
    assert "Swoosuk" in first["answer"]
    assert again["answer"] == first["answer"]
    assert again["computed"] < 0.6 * first["computed"]
    assert library.run("retrieval", add_url=url)["texts"] == 3


def test_questions_at_once_may_all_compute_the_text(library: Library) -> None:
    text = "Zora lives in Oslo, by the sea, with a cat and a dog. " * 8
    library.run("retrieval", add=[text])
    launched = [library.launch("retrieval", (), question="Where is Zora?") for _ in range(3)]
    assert {json.loads(one.result())["source"] for one in launched} == {text}


@pytest.mark.parametrize("keep", [16, 0])
def test_a_conversation_is_summarised_when_it_grows_too_long(library: Library, keep: int) -> None:
    said = ["What is 12 + 34?"] * 6
    options: dict[str, object] = {"most": 80, "keep": keep, "max_tokens": 8}
    given = library.run("summarise_in_place", messages=said, **options)
    instance = library.launch("summarise_in_place", (), **options)
    for text in said:
        instance.send(text)
        assert instance.receive()
    instance.send("")
    found = json.loads(instance.result())
    assert given == found
    assert found["turns"] == 6
    assert len(found["summaries"]) >= 1
    assert found["longest"] <= 80 + 40


def test_a_person_decides_about_each_call(library: Library) -> None:
    made = {}
    for answer in ("yes", "no", 'cook_plan(colour="red")'):
        options: dict[str, object] = {
            "functions": ["play_man(text)", "cook_plan(colour)"],
            "request": 'play_man with text "strazyrt".',
        }
        instance = library.launch("human_in_the_loop", (), **options)
        asked = json.loads(str(instance.receive()))
        wanted = {"name": "play_man", "arguments": {"text": "strazyrt"}}
        assert json.loads(asked["call"]) == wanted
        instance.send(answer)
        made[answer[:2]] = json.loads(instance.result())["made"]
        assert (
            library.run("human_in_the_loop", answer=answer, **options)["made"] == made[answer[:2]]
        )
    assert made == {"ye": ["play_man"], "no": [], "co": ["cook_plan"]}


def test_an_order_waits_for_a_person(library: Library) -> None:
    question = "The capital of Thessel is"
    instance = library.launch("approval_agent", (), question=question)
    asked = str(instance.receive())
    instance.send("yes")
    found = json.loads(instance.result())
    assert asked == f"Order {found['order']}: {found['plan'].strip()} Shall I?\n"
    assert found["answer"] == "yes"
    again = library.run("approval_agent", question=question, answer="no")
    assert (again["order"], again["plan"]) == (found["order"] + 1, found["plan"])
    assert again["words"] != found["words"]
