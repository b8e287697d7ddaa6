"""The ways in which model families write tool calls, as their models were trained."""

from __future__ import annotations

from .call_format import CallId, Form, Parameters, ToolFormat

_ARGUMENTS = ('{"name": "', '", "arguments": ')
_PARAMETERS = ('{"name": "', '", "parameters": ')
_PYTHON = Parameters(("", "="), between=", ")
_SEVERAL = ", "  # between the calls of a list


def _list_of_calls(name: str, prefix: str, suffix: str = "", *tags: str) -> ToolFormat:
    """Calls as a JSON array after a tag."""
    form = Form(prefix + "[", _ARGUMENTS, "}", "]" + suffix, _SEVERAL)
    return ToolFormat(name, form, (prefix.strip(), *tags), closing_tag=suffix.strip())


def _python_list(name: str, tag: str, closing_tag: str) -> ToolFormat:
    """Calls as a list of Python's, after a tag."""
    form = Form(tag + "[", ("", "("), ")", "]" + closing_tag, _SEVERAL)
    return ToolFormat(name, form, (tag,), closing_tag, parameters=_PYTHON)


def _xml(
    name: str, tag: str, between: str | None, head: tuple[str, str], tail: str, parameters: Parameters
) -> ToolFormat:
    """Calls as elements with one element for each parameter, inside of the element `tag`."""
    closing_tag = tag.replace("<", "</", 1)
    form = Form(tag + "\n", head, tail, "\n" + closing_tag, between)
    bodies = "\n" if between is None else None
    return ToolFormat(name, form, (tag,), closing_tag, between_bodies=bodies, parameters=parameters)


_QWEN = Parameters(("<parameter=", ">\n"), end="\n</parameter>\n", quote="")
_DSML = "｜DSML｜"
_PYTHONIC_FORM = Form("[", ("", "("), ")", "]", _SEVERAL)
_HARMONY_HEAD = (" to=functions.", "<|channel|>commentary json<|message|>")
_HARMONY_NATURAL = ("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>")
_DEEPSEEK = "<｜tool▁calls▁begin｜>"
_KIMI = "<|tool_calls_section_begin|>"

FORMATS: dict[str, ToolFormat] = {
    each.name: each
    for each in (
        _xml("qwen_xml", "<tool_call>", None, ("<function=", ">\n"), "</function>", _QWEN),
        _xml(
            "seed_oss",
            "<seed:tool_call>",
            None,
            ("<function=", ">\n"),
            "</function>",
            _QWEN._replace(name=("<parameter=", ">"), end="</parameter>\n"),
        ),
        _xml(
            "minimax",
            "<minimax:tool_call>",
            "\n",
            ('<invoke name="', '">\n'),
            "</invoke>",
            Parameters(('<parameter name="', '">'), end="</parameter>\n", quote=""),
        ),
        _xml(
            "dsml",
            f"<{_DSML}function_calls>",
            "\n",
            (f'<{_DSML}invoke name="', '">\n'),
            f"</{_DSML}invoke>",
            Parameters(
                (f'<{_DSML}parameter name="', '" string="true">'),
                end=f"</{_DSML}parameter>\n",
                quote="",
                typed='" string="false">',
            ),
        ),
        ToolFormat(
            "glm",
            Form("<tool_call>", ("", "\n"), "", "</tool_call>"),
            ("<tool_call>",),
            "</tool_call>",
            between_bodies="\n",
            parameters=Parameters(("<arg_key>", "</arg_key>\n<arg_value>"), end="</arg_value>\n", quote=""),
        ),
        ToolFormat(
            "hermes",
            Form("<tool_call>\n", _ARGUMENTS, "}", "\n</tool_call>"),
            ("<tool_call>",),
            "</tool_call>",
            between_bodies="\n",
        ),
        ToolFormat(
            "deepseek_v3",
            Form(
                _DEEPSEEK,
                ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n"),
                "\n```<｜tool▁call▁end｜>",
                "<｜tool▁calls▁end｜>",
                "\n",
            ),
            (_DEEPSEEK,),
            "<｜tool▁calls▁end｜>",
        ),
        ToolFormat(
            "deepseek_v31",
            Form(
                _DEEPSEEK,
                ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
                "<｜tool▁call▁end｜>",
                "<｜tool▁calls▁end｜>",
                "",
            ),
            (_DEEPSEEK,),
            "<｜tool▁calls▁end｜>",
        ),
        ToolFormat(
            "kimi",
            Form(
                _KIMI,
                ("<|tool_call_begin|>functions.", "<|tool_call_argument_begin|>"),
                "<|tool_call_end|>",
                "<|tool_calls_section_end|>",
                "",
            ),
            (_KIMI,),
            "<|tool_calls_section_end|>",
            call_id=CallId(":", "[0-9]{1,4}", "functions.{name}:{number}"),
        ),
        ToolFormat(
            "gemma",
            Form("<|tool_call>", ("call:", "{"), "}", "<tool_call|>"),
            ("<|tool_call>",),
            "<tool_call|>",
            between_bodies="",
            parameters=Parameters(("", ":"), between=",", quote='<|"|>', is_sorted=True),
            separators=(",", ":"),
        ),
        ToolFormat(
            "function_gemma",
            Form("<start_function_call>", ("call:", "{"), "}", "<end_function_call>"),
            ("<start_function_call>",),
            "<end_function_call>",
            between_bodies="",
            parameters=Parameters(("", ":"), between=",", quote="<escape>", is_sorted=True),
            separators=(",", ":"),
        ),
        ToolFormat(
            "harmony",
            Form("", _HARMONY_HEAD, "", ""),
            (_HARMONY_NATURAL[0], "<|start|>assistant to=functions."),
            bracket=" to=functions.",
            others=(Form("<|start|>assistant", _HARMONY_HEAD, "", ""), Form("", _HARMONY_NATURAL, "", "")),
        ),
        ToolFormat(
            "mistral",
            Form("[TOOL_CALLS] [", _ARGUMENTS, "}", "]", _SEVERAL),
            ("[TOOL_CALLS]",),
            id_length=9,
        ),
        ToolFormat(
            "mistral_named",
            Form("[TOOL_CALLS]", ("", "[ARGS]"), "", ""),
            ("[TOOL_CALLS]",),
            between_bodies="",
            id_length=9,
        ),
        ToolFormat(
            "mistral_bare",
            Form("[TOOL_CALLS]", ("", ""), "", ""),
            ("[TOOL_CALLS]",),
            between_bodies="",
            id_length=9,
        ),
        ToolFormat(
            "mistral_ids",
            Form("[TOOL_CALLS]", ("", "[ARGS]"), "", ""),
            ("[TOOL_CALLS]",),
            between_bodies="",
            call_id=CallId("[CALL_ID]", "[a-zA-Z0-9]{9}", "{number}"),
        ),
        _python_list("lfm2", "<|tool_call_start|>", "<|tool_call_end|>"),
        ToolFormat(
            "olmo3",
            Form("<function_calls>", ("", "("), ")", "</function_calls>", "\n"),
            ("<function_calls>",),
            "</function_calls>",
            parameters=_PYTHON,
        ),
        _list_of_calls("granite", "<|tool_call|>", "", "<tool_call>"),
        _list_of_calls("phi4_mini", "functools"),
        _list_of_calls("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
        _list_of_calls("hunyuan", "<tool_calls>", "</tool_calls>"),
        ToolFormat(
            "pythonic",
            _PYTHONIC_FORM,
            ("<|python_start|>", "<|python_tag|>"),
            "<|python_end|>",
            bracket="[",
            parameters=_PYTHON,
            others=(_PYTHONIC_FORM._replace(prefix="<|python_start|>[", suffix="]<|python_end|>"),),
        ),
        ToolFormat(
            "llama_json",
            Form("", _PARAMETERS, "}", ""),
            ("<|python_tag|>",),
            bracket="{",
            others=(Form("<|python_tag|>", _PARAMETERS, "}", ""),),
        ),
    )
}
"""By name. A format comes before those that its marks would fit too."""
