"""Minimal chat templates that write tool calls and reasoning as the model families do."""

# ruff: noqa: E501

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.tools.call_format import ToolFormat
from arbora.frontend.core.tools.parameter_grammar import parameter_types
from arbora.frontend.core.tools.tool_formats import detect_format


class FamilyTemplate(NamedTuple):
    """`calls` is the part of the template that writes `message.tool_calls`. `special`: the marks that are special
    tokens of the family. `assistant` begins an assistant's turn, and `reasoning` are the texts around its
    reasoning."""

    calls: str
    special: tuple[str, ...] = ()
    assistant: str = "<|assistant|>"
    end: str = "<|eot|>"
    reasoning: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    content: str = "{{ message.content or '' }}"

    @property
    def source(self) -> str:
        opened, closed = self.reasoning
        return (
            "{%- if tools %}{{ '<|system|>' + (tools | tojson) + '<|eot|>' }}{% endif %}"
            "{%- for message in messages %}{%- if message.role == 'assistant' %}"
            f"{self.assistant}{{%- if message.reasoning_content %}}{{{{ {opened!r} + message.reasoning_content + "
            f"{closed!r} }}}}{{% endif %}}{self.content}"
            f"{{%- set calls = message.tool_calls or [] %}}{_keep_lines(self.calls)}{self.end}"
            "{%- else %}{{ '<|' + message.role + '|>' + message.content + '<|eot|>' }}{% endif %}{%- endfor %}"
            f"{{%- if add_generation_prompt %}}{self.assistant}{{% endif %}}"
        )


def _keep_lines(source: str) -> str:
    """The source with line breaks that no block removes."""
    return source.replace("\n", "{{ '\\n' }}")


def _each(call: str, between: str = "") -> str:
    """The template of all calls, each written by `call`, in which `f` is its function."""
    separator = f"{{%- if not loop.last %}}{{{{ {between!r} }}}}{{% endif %}}" if between else ""
    return f"{{%- for call in calls %}}{{%- set f = call.function %}}{call}{separator}{{%- endfor %}}"


def _around(before: str, calls: str, after: str) -> str:
    return f"{{%- if calls %}}{{{{ {before!r} }}}}{calls}{{{{ {after!r} }}}}{{% endif %}}"


def _parameters(before: str, between: str, after: str, value: str, joined: str = "") -> str:
    separator = f"{{%- if not loop.last %}}{{{{ {joined!r} }}}}{{% endif %}}" if joined else ""
    return (
        f"{{%- for k, v in f.arguments.items() %}}{{{{ {before!r} + k + {between!r} }}}}{value}"
        f"{{{{ {after!r} }}}}{separator}{{%- endfor %}}"
    )


_RAW = "{{ v if v is string else v | tojson }}"
_AS_QWEN = "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}"
_JSON_CALL = """{{ '{"name": "' + f.name + '", "arguments": ' + (f.arguments | tojson) + '}' }}"""
_NAMED = "{{ f.name }}"
_JSON = "{{ f.arguments | tojson }}"
_PYTHON_CALL = f"{_NAMED}({_parameters('', '=', '', '{{ v | tojson }}', ', ')})"
_GEMMA = (
    "{%- macro value(v) %}{% if v is string %}{{ '<|\"|>' + v + '<|\"|>' }}{% elif v is mapping %}"
    "{{ '{' }}{% for k, w in v | dictsort %}{{ k }}:{{ value(w) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}"
    "{% elif v is sequence %}[{% for w in v %}{{ value(w) }}{{ ',' if not loop.last }}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
_GEMMA_ARGUMENTS = (
    "{%- for k, v in f.arguments | dictsort %}{{ k }}:{{ value(v) }}{{ ',' if not loop.last }}{% endfor %}"
)
_DSML = "｜DSML｜"
_DSML_PARAMETERS = (
    "{%- for k, v in f.arguments.items() %}{{ '<｜DSML｜parameter name=\"' + k + '\" string=\"' }}"
    "{{ 'true' if v is string else 'false' }}{{ '\">' }}"
    + _RAW
    + "{{ '</｜DSML｜parameter>\\n' }}{% endfor %}"
)
_HARMONY_MARKS = (
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|constrain|>",
    "<|call|>",
    "<|return|>",
)
_THINK = ("<think>", "</think>")

FAMILY_TEMPLATES = {
    "hermes": FamilyTemplate(_each("<tool_call>\n" + _JSON_CALL + "\n</tool_call>", "\n")),
    "qwen_xml": FamilyTemplate(
        _each(
            "<tool_call>\n<function="
            + _NAMED
            + ">\n"
            + _parameters("<parameter=", ">\n", "\n</parameter>\n", _AS_QWEN)
            + "</function>\n</tool_call>",
            "\n",
        )
    ),
    "seed_oss": FamilyTemplate(
        _each(
            "<seed:tool_call>\n<function="
            + _NAMED
            + ">\n"
            + _parameters("<parameter=", ">", "</parameter>\n", _RAW)
            + "</function>\n</seed:tool_call>",
            "\n",
        ),
        ("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
        reasoning=("<seed:think>", "</seed:think>"),
    ),
    "minimax": FamilyTemplate(
        _around(
            "<minimax:tool_call>\n",
            _each(
                '<invoke name="'
                + _NAMED
                + '">\n'
                + _parameters('<parameter name="', '">', "</parameter>\n", _RAW)
                + "</invoke>",
                "\n",
            ),
            "\n</minimax:tool_call>",
        ),
        ("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    "dsml": FamilyTemplate(
        _around(
            f"<{_DSML}function_calls>\n",
            _each(f'<{_DSML}invoke name="{_NAMED}">\n' + _DSML_PARAMETERS + f"</{_DSML}invoke>", "\n"),
            f"\n</{_DSML}function_calls>",
        )
    ),
    "glm": FamilyTemplate(
        _each(
            "<tool_call>"
            + _NAMED
            + "\n"
            + _parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", _RAW)
            + "</tool_call>",
            "\n",
        ),
        ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *_THINK),
    ),
    "glm, without line breaks": FamilyTemplate(
        _each(
            "<tool_call>"
            + _NAMED
            + _parameters("<arg_key>", "</arg_key><arg_value>", "</arg_value>", _RAW)
            + "</tool_call>"
        ),
        ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *_THINK),
    ),
    "deepseek_v3": FamilyTemplate(
        _around(
            "<｜tool▁calls▁begin｜>",
            _each(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
                + _NAMED
                + "\n```json\n"
                + _JSON
                + "\n```<｜tool▁call▁end｜>",
                "\n",
            ),
            "<｜tool▁calls▁end｜>",
        ),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
        ),
    ),
    "deepseek_v31": FamilyTemplate(
        _around(
            "<｜tool▁calls▁begin｜>",
            _each("<｜tool▁call▁begin｜>" + _NAMED + "<｜tool▁sep｜>" + _JSON + "<｜tool▁call▁end｜>"),
            "<｜tool▁calls▁end｜>",
        ),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
        ),
    ),
    "kimi": FamilyTemplate(
        _around(
            "<|tool_calls_section_begin|>",
            _each(
                "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>" + _JSON + "<|tool_call_end|>"
            ),
            "<|tool_calls_section_end|>",
        ),
        (
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
    ),
    "gemma": FamilyTemplate(
        _GEMMA
        + _each("<|tool_call>call:" + _NAMED + "{{ '{' }}" + _GEMMA_ARGUMENTS + "{{ '}' }}<tool_call|>"),
        ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
        reasoning=("<|channel>thought\n", "\n<channel|>"),
    ),
    "function_gemma": FamilyTemplate(
        _GEMMA.replace('<|"|>', "<escape>")
        + _each(
            "<start_function_call>call:"
            + _NAMED
            + "{{ '{' }}"
            + _GEMMA_ARGUMENTS
            + "{{ '}' }}<end_function_call>"
        ),
        ("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    "harmony": FamilyTemplate(
        _each(" to=functions." + _NAMED + "<|channel|>commentary json<|message|>" + _JSON + "<|call|>"),
        _HARMONY_MARKS,
        "<|start|>assistant",
        "",
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        "{%- if message.content %}<|channel|>final<|message|>{{ message.content }}<|end|>{% endif %}",
    ),
    "mistral": FamilyTemplate(
        _around("[TOOL_CALLS] [", _each(_JSON_CALL, ", "), "]"),
        ("[TOOL_CALLS]",),
        reasoning=("[THINK]", "[/THINK]"),
    ),
    "mistral_named": FamilyTemplate(
        _each("[TOOL_CALLS]" + _NAMED + "[ARGS]" + _JSON),
        ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        reasoning=("[THINK]", "[/THINK]"),
    ),
    "mistral_bare": FamilyTemplate(_each("[TOOL_CALLS]" + _NAMED + _JSON), ("[TOOL_CALLS]",)),
    "mistral_ids": FamilyTemplate(
        _each("[TOOL_CALLS]" + _NAMED + "[CALL_ID]{{ call.id }}[ARGS]" + _JSON),
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    "lfm2": FamilyTemplate(
        _around("<|tool_call_start|>[", _each(_PYTHON_CALL, ", "), "]<|tool_call_end|>"),
        ("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "olmo3": FamilyTemplate(_around("<function_calls>", _each(_PYTHON_CALL, "\n"), "</function_calls>")),
    "granite": FamilyTemplate(_around("<|tool_call|>[", _each(_JSON_CALL, ", "), "]"), ("<|tool_call|>",)),
    "phi4_mini": FamilyTemplate(_around("functools[", _each(_JSON_CALL, ", "), "]")),
    "nemotron": FamilyTemplate(_around("<TOOLCALL>[", _each(_JSON_CALL, ", "), "]</TOOLCALL>")),
    "hunyuan": FamilyTemplate(_around("<tool_calls>[", _each(_JSON_CALL, ", "), "]</tool_calls>")),
    "pythonic": FamilyTemplate(
        _around("[", _each(_PYTHON_CALL, ", "), "]") + "{# [func_name1( #}", reasoning=("<think>", "</think>")
    ),
    "llama_json": FamilyTemplate(
        _each(_JSON_CALL.replace('arguments"', 'parameters"')) + '{# "parameters": #}'
    ),
}
"""By the name of the family's format, and a variant after a comma."""

USER = {"role": "user", "content": "Hello"}
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
    "required": ["city", "zip"],
    "additionalProperties": False,
}
PROPERTIES: dict[str, Any] = {
    "count": {"type": "integer"},
    "flag": {"type": "boolean"},
    "note": {"type": "string"},
    "place": PLACE,
    "tags": {"type": "array", "items": {"type": "string"}},
    "unit": {"enum": ["C", "F"]},
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["note"]},
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]
TYPES = {tool["function"]["name"]: parameter_types(tool["function"]["parameters"]) for tool in TOOLS}
ARGUMENTS: dict[str, Any] = {
    "count": -3,
    "flag": True,
    "note": 'Zwei\n"Zeilen" mit </tool_call>, [TOOL_CALLS], <|end|> und {Klammern]: ü',
    "place": {"city": "Köln, a", "zip": 50667},
    "tags": ["a", "b c"],
    "unit": "C",
}
FIND: tuple[str, dict[str, Any]] = ("find", ARGUMENTS)
CLOCK: tuple[str, dict[str, Any]] = ("clock", {})


@lru_cache
def family(name: str) -> tuple[ChatTemplate, ToolFormat]:
    known = FAMILY_TEMPLATES[name]
    template = ChatTemplate({"default": known.source}, {}, frozenset((*known.special, "<|eot|>")))
    return template, detect_format(template)


def render_calls(name: str, *calls: tuple[str, dict[str, Any]], **fields: Any) -> str:
    """The text of a reply with these calls, as the template writes it on the next turn."""
    template, format = family(name)
    called = [
        {
            "id": call_id(format, function, number),
            "type": "function",
            "function": {"name": function, "arguments": given},
        }
        for number, (function, given) in enumerate(calls)
    ]
    assistant = {"role": "assistant", "content": "", **fields, "tool_calls": called}
    prompt = template.render([USER], tools=TOOLS)
    text = template.render([USER, assistant], tools=TOOLS, add_generation_prompt=False)
    assert text.startswith(prompt)
    return text.removeprefix(prompt).removesuffix("<|eot|>").removesuffix("<|call|>").replace("\ufdd1", "")


def call_id(format: ToolFormat, function: str, number: int) -> str:
    if format.call_id is None:
        return f"abcdefgh{number}"
    return format.call_id.id.format(
        name=function, number=str(number) if format.name == "kimi" else f"abcdefgh{number}"
    )
