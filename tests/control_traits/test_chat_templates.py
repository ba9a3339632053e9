"""Chat templates: what `transformers` renders, byte for byte, and never more than is bounded."""

from __future__ import annotations

import datetime
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import small_tokenizer
from support.instances import failure
from transformers import AutoTokenizer, LlavaProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from pie_control.errors import ApiError
from pie_control.models.chat_template import ChatTemplates
from pie_control.models.tokenizer import TextCodec
from pie_control.models.tokenizer_files import UnusableTokenizer

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief, é <b>."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
    {"role": "tool", "content": "21 °C", "name": "f"},
    {"role": "assistant", "content": "It is 21.", "reasoning": "so warm"},
    {"role": "user", "content": [{"type": "text", "text": "Thanks"}]},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": [True, None]}}}]

# Each uses what templates of the last years use; none is anyone's.
TEMPLATES = {
    "date": "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}1999{% endif %}",
    "generation": """
{%- set seen = 'no' %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- generation %}{% set seen = 'yes' %}{{ m.content }}{{ seen }}{%- endgeneration %}
    {%- else %}{{ m.role }}{% endif %}
{%- endfor %}
{{ seen }}""",
    "tojson": """{{ tools | tojson(indent=2, sort_keys=true) }}{{ messages|tojson }}
{{ messages | tojson(ensure_ascii=True) }}{{ tools|tojson(separators=(',', ':')) }}""",
    "arguments": """{{ enable_thinking is defined and enable_thinking is false }}
{{ reasoning_effort|default('medium') }} {{ documents | map(attribute='title') | join(', ') }}
{{ tools is not none }} {{ bos_token ~ eos_token }}{{ sep_token is defined }}""",
    "macro": """
{%- macro line(m, depth=0) -%}
    {%- if depth < 2 %}[{{ line(m, depth + 1) }}]{% else %}{{ m.role|upper }}{% endif %}
{%- endmacro %}
{%- set ns = namespace(n=0, last='') %}
{%- for m in messages recursive %}
{%- if loop.index0 is divisibleby 2 %}{% continue %}{% endif %}
    {%- set ns.n = ns.n + 1 %}{% set ns.last = m.role %}
{{ loop.index }} {{ line(m) -}}
{% endfor %}
{{ ns.n }} {{ ns.last }} {{ messages[::-1][0].role }} {{ '%s-%d' % ('x', 3) }}
{{ '{:>5}'.format('ab') }} {{ dict(a=1).items() | list }} {{ 'a,b'.split(',')[-1].strip('b ') }}""",
    "white space": """  {% for m in messages %}
    {{ m.role }}
  {% endfor %}
{#- a note #}
{% set block %}
 {{ messages|length }}
{% endset %}
{{ block|trim }}{% filter upper %}abc{% endfilter %}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ messages | rejectattr('content', 'undefined') | map(attribute='role') | unique | join('/') }}""",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}",
    "none": "{% for m in messages %}{{ 'content' in m }}{{ m.content is string }}{% endfor %}",
    "refuses": "{{ raise_exception('roles must alternate') }}",
    "undefined": "{{ nothing.at.all }}",
}


def folder_of(folder: Path, templates: str | dict[str, str], **settings_: Any) -> Path:
    """A tokenizer with templates, as `transformers` saves it."""
    tokenizer = small_tokenizer()
    tokenizer.chat_template = templates
    tokenizer.save_pretrained(folder, **settings_)
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[TextCodec, Any]:
    """Ours and theirs, of one folder with all templates."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    folder = folder_of(tmp_path_factory.mktemp("templates"), {**TEMPLATES, "default": "d"})
    return TextCodec(folder), AutoTokenizer.from_pretrained(folder)


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"tools": [], "documents": [{"title": "A", "text": "B"}, {"title": "é"}]},
    {"enable_thinking": False, "reasoning_effort": "high", "bos_token": "<other>"},
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_transformers(both: tuple[TextCodec, Any], name: str) -> None:
    ours, theirs = both
    for arguments, cue in itertools.product(ARGUMENTS, (False, True)):
        request = json.dumps({"messages": TALK, "chat_template": name, **arguments})
        try:
            wanted = theirs.apply_chat_template(
                TALK, tokenize=False, chat_template=name, add_generation_prompt=cue, **arguments
            )
        except (jinja2.TemplateError, TypeError) as error:
            with failure("invalid-argument", str(error)[:40]):
                ours.apply_chat_template(request, cue)
        else:
            assert ours.apply_chat_template(request, cue) == wanted


def test_a_null_is_not_there_and_is_none(tmp_path: Path) -> None:
    """Templates ask for either: null content is that of a message that only calls."""
    fields = ("content", "name", "tool_calls", "reasoning_content", "thinking")
    asked = (
        "{{ m.FIELD is none }},{{ m['FIELD'] is not none }},{{ m.FIELD == none }},"
        "{{ m.FIELD is defined }},{{ 'FIELD' in m }},{{ m.FIELD is string }},{{ m.FIELD }}|"
    )
    source = "{% set m = messages[-1] %}" + "".join(asked.replace("FIELD", f) for f in fields)
    codec = TextCodec(folder_of(tmp_path, source))

    def told(**fields: Any) -> list[str]:
        text = codec.apply_chat_template(json.dumps([{"role": "user", **fields}]), False)
        return text.split("|")[:-1]

    assert told(**dict.fromkeys(fields)) == ["True,False,True,False,False,False,"] * 5
    assert told() == ["False,True,False,False,False,False,"] * 5  # as `transformers` has it
    assert told(content="a", reasoning="b", thinking=None)[::4] == [
        f"False,True,False,True,True,True,{text}" for text in "ab"
    ]


def outcome(templates: ChatTemplates, request: Any, seconds: float) -> str:
    """The text, or the code of the error."""
    try:
        return templates.render(json.dumps(request), False, seconds)
    except ApiError as error:
        return error.code


def test_named_templates_and_files(tmp_path: Path) -> None:
    """Those for tools are found by themselves; files come before what the configuration holds."""
    request = json.dumps({"messages": TALK, "tools": TOOLS})
    named = TextCodec(folder_of(tmp_path / "a", {"default": "plain", "tool_use": "tools"}))
    assert named.apply_chat_template(json.dumps(TALK), False) == "plain"
    assert named.apply_chat_template(request, False) == "tools"
    with failure("invalid-argument", "one of: default, tool_use"):
        named.apply_chat_template(json.dumps({"messages": TALK, "chat_template": "x"}), False)
    listed = tmp_path / "b"
    folder_of(listed, "of the file")
    config = json.loads((listed / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "default", "template": "listed"}]
    (listed / "tokenizer_config.json").write_text(json.dumps(config))
    assert TextCodec(listed).apply_chat_template(json.dumps(TALK), False) == "of the file"
    (listed / "chat_template.jinja").unlink()
    assert TextCodec(listed).apply_chat_template(json.dumps(TALK), False) == "listed"


@pytest.mark.parametrize(
    "said",
    [
        ("listed",),
        ("chat_template.jinja", "listed"),
        ("chat_template.json", "chat_template.jinja", "listed"),
        ("processor_config.json", "chat_template.json", "chat_template.jinja", "listed"),
    ],
    ids=lambda said: said[0],
)
def test_templates_of_a_processor(tmp_path: Path, said: tuple[str, ...]) -> None:
    """Its own come before the tokenizer's, as in `transformers`: the first of these."""
    LlavaProcessor(CLIPImageProcessorPil(), small_tokenizer()).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    processor = json.loads((tmp_path / "processor_config.json").read_text())
    texts = {name: json.dumps({**processor, "chat_template": name}) for name in said[:-1]}
    texts |= {"chat_template.jinja": "chat_template.jinja"} if len(said) > 1 else {}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**config, "chat_template": "listed"})
    )
    ours = TextCodec(tmp_path).apply_chat_template(json.dumps(TALK[:2]), False)
    assert ours == said[0]
    if len(said) > 1:  # it does not look there for a processor's
        assert ours == LlavaProcessor.from_pretrained(tmp_path).apply_chat_template(TALK[:2])
    # Without a processor, the file is the tokenizer's last.
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").unlink(missing_ok=True)
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(TALK[:2], tokenize=False)
    assert TextCodec(tmp_path).apply_chat_template(json.dumps(TALK[:2]), False) == theirs


def test_a_template_that_only_the_old_file_has(tmp_path: Path) -> None:
    small_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    file = tmp_path / "chat_template.json"
    file.write_text('{"chat_template": "alone"}')
    assert TextCodec(tmp_path).apply_chat_template(json.dumps(TALK), False) == "alone"
    file.write_text("[1]")
    with pytest.raises(UnusableTokenizer, match=r"chat_template\.json"):
        TextCodec(tmp_path)


def test_the_date_is_todays() -> None:
    then = datetime.datetime(2031, 2, 3, tzinfo=datetime.UTC)
    templates = ChatTemplates({"default": "{{ strftime_now('%d %b %Y') }}"}, {}, lambda: then)
    assert templates.render(json.dumps(TALK), False, 1) == "03 Feb 2031"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ 10 ** 1000000000 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}"
        "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
        "{% set ns = namespace(x=7) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}"
        "{% endfor %}",
        *(
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
            + "{% endfor %}"
            + use
            for use in (
                "{{ ns.x }}",
                "{{ ns.x | tojson }}",
                "{{ ns.x ~ '' }}",
                "{{ ns.x == [ns.x] }}",
                "{{ '%s' % ns.x }}",
                "{{ '{}'.format(ns.x) }}",
                "{{ ns.x | string }}",
                "{{ [ns.x, ns.x] | sort }}",
            )
        ),
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(_x=1) %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_a_template_of_a_stranger_is_bounded(source: str) -> None:
    """It ends soon, with an error of its caller; never with a full memory or a stopped server."""
    templates = ChatTemplates({"default": source}, {})
    before = datetime.datetime.now(datetime.UTC)
    assert outcome(templates, TALK, 0.2) in ("invalid-argument", "limit-exceeded")
    assert (datetime.datetime.now(datetime.UTC) - before).total_seconds() < 20


@pytest.mark.parametrize("source", ["{% if %}", "{{ a b }}", "{% for x in y %}", "{% nothing %}"])
def test_a_template_that_cannot_be_read_is_named(source: str) -> None:
    with failure("unsupported", "the model's chat template 'default', line 1"):
        ChatTemplates({"default": source}, {}).render(json.dumps(TALK), False, 1)


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    )
)
def test_any_request_renders_or_is_the_callers_error(value: Any) -> None:
    templates = ChatTemplates({"default": TEMPLATES["macro"] + TEMPLATES["tojson"]}, {})
    for request in (value, {"messages": value}, {"messages": TALK, "tools": value}, [value]):
        assert outcome(templates, request, 9) != "limit-exceeded"
