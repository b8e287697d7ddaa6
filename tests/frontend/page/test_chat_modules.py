"""The modules of the page that compute for chats: trees, files, the storage, settings, forms, tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.cli.chat.conversation import SETTINGS, load_conversation
from page_module import PageModule

USER = {"role": "user", "content": "Hello"}
REPLY = {"role": "assistant", "content": "Hi."}


@pytest.fixture
def trees() -> PageModule:
    """A tree with a question, and a second one beside it that has two replies."""
    module = PageModule("message_tree")
    module.run("globalThis.tree = new MessageTree()")
    texts = "tree.path().map(({ message }) => message)"
    for parent, text in ((0, "a"), (1, "A"), (0, "b"), (3, "B"), (3, "C")):
        module.run("tree.goTo(parent), tree.add(parent, text)", parent=parent, text=text)
    assert module.run(texts) == ["b", "C"]
    return module


@pytest.fixture(scope="module")
def files() -> PageModule:
    return PageModule("sampling", "message_tree", "chat_file")


@pytest.fixture(scope="module")
def forms() -> PageModule:
    return PageModule("schema_form")


@pytest.fixture(scope="module")
def sampling() -> PageModule:
    return PageModule("sampling")


@pytest.fixture(scope="module")
def tools() -> PageModule:
    return PageModule("tools")


# The tree of messages

SHOWN = "tree.path().map(({ message }) => message)"


def test_a_branch_is_shown_to_the_end_that_was_shown_last(trees: PageModule) -> None:
    assert trees.run("tree.siblings(5).map(({ message }) => message)") == ["B", "C"]
    trees.run("tree.show(4)")
    trees.run("tree.show(1)")
    assert trees.run(SHOWN) == ["a", "A"]
    trees.run("tree.show(3)")
    assert trees.run(SHOWN) == ["b", "B"]


def test_a_message_below_another_branch_does_not_move_what_is_shown(trees: PageModule) -> None:
    trees.run("tree.add(2, 'late')")
    assert trees.run(SHOWN) == ["b", "C"]


def test_a_removed_message_leaves_its_siblings(trees: PageModule) -> None:
    trees.run("tree.remove(5)")
    assert trees.run(SHOWN) == ["b"]
    trees.run("tree.show(3)")
    assert trees.run(SHOWN) == ["b", "B"]
    assert trees.error("tree.remove(1)") == "messages follow message 1"


def test_a_tree_is_the_same_after_writing_and_reading(trees: PageModule) -> None:
    trees.run("tree.show(4)")
    written = trees.run("tree")
    assert trees.run("readTree(written)", written=written) == written
    assert trees.run("readTree(written).path().map(({ message }) => message)", written=written) == ["b", "B"]


@pytest.mark.parametrize(
    ("nodes", "leaf", "error"),
    [
        (None, 0, "tree.nodes must be a list"),
        ([{"id": 1, "parent": 2}], 1, "tree.nodes[0].parent is 2"),
        ([{"id": 1, "parent": 0}, {"id": 1, "parent": 0}], 1, "tree.nodes[1].id is 1"),
        ([{"id": 1, "parent": 0}], 7, "tree.leaf is 7"),
    ],
)
def test_a_damaged_tree_is_refused(trees: PageModule, nodes: Any, leaf: int, error: str) -> None:
    assert error in trees.error("readTree(given)", given={"nodes": nodes, "leaf": leaf})


# Files of chats

CHAT = {
    "title": "A chat",
    "settings": {
        "model": "m",
        "system": "Be brief.",
        "sampling": {"temperature": 0.5, "stop": ["\n"], "cache_prompt": False, "seed": 7},
        "schema": '{"type": "object"}',
        "tools": '[{"name": "f", "mock": "1"}]',
    },
    "tree": {
        "leaf": 5,
        "nodes": [
            {
                "id": 1,
                "parent": 0,
                "chosen": 4,
                "message": USER,
                "documents": [{"name": "d.txt", "text": "Text."}],
            },
            {"id": 2, "parent": 1, "chosen": None, "message": REPLY},
            {
                "id": 4,
                "parent": 1,
                "chosen": 5,
                "message": {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                    ],
                },
            },
            {
                "id": 5,
                "parent": 4,
                "chosen": None,
                "message": {"role": "tool", "tool_call_id": "c", "content": "1"},
            },
        ],
    },
}
WRITTEN = "writeChat({ ...chat, tree: readTree(chat.tree) })"


def test_an_exported_chat_loads_in_the_terminal_s_chat(files: PageModule, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(files.run(WRITTEN, chat=CHAT)))
    loaded = load_conversation(path)
    assert (loaded.model, loaded.system, loaded.schema) == ("m", "Be brief.", {"type": "object"})
    assert loaded.settings == CHAT["settings"]["sampling"]  # type: ignore[index]
    assert [(each.role, each.content) for each in loaded.messages] == [
        ("user", "Document d.txt:\nText.\n\nHello")
    ]


def test_an_imported_chat_has_the_branches_of_the_exported_one(files: PageModule) -> None:
    text = json.dumps(files.run(WRITTEN, chat=CHAT))
    read = files.run("readChat(text)", text=text)
    assert read["title"] == "A chat"
    assert json.loads(read["settings"]["tools"]) == [{"name": "f", "mock": "1"}]
    assert read["settings"]["sampling"] == CHAT["settings"]["sampling"]  # type: ignore[index]
    shown = files.run("readChat(text).tree.path().map(({ message }) => message)", text=text)
    nodes: Any = CHAT["tree"]["nodes"]  # type: ignore[index]
    assert shown == [nodes[0]["message"], nodes[2]["message"], nodes[3]["message"]]
    assert read["tree"]["nodes"][0]["documents"] == nodes[0]["documents"]


def test_a_chat_that_the_terminal_saved_is_read(files: PageModule) -> None:
    saved = {
        "model": "m",
        "system": None,
        "messages": [USER, REPLY],
        "settings": {"top_k": 3},
        "schema": None,
    }
    read = files.run("readChat(text)", text=json.dumps(saved))
    assert [node["message"] for node in read["tree"]["nodes"]] == [USER, REPLY]
    assert read["settings"] == {
        "model": "m",
        "system": "",
        "sampling": {"top_k": 3},
        "schema": "",
        "tools": "",
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "it is no chat"),
        ('{"messages": 5}', "it is no chat"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "message 1 must have a role"),
        ('{"messages": [{"role": "user", "content": ["x"]}]}', "message 1 must have a role"),
        ('{"messages": [null]}', "message 1 must have a role"),
        ('{"messages": [], "tree": {"leaf": 0, "nodes": 5}}', "tree.nodes must be a list"),
    ],
)
def test_a_file_that_is_no_chat_is_refused(files: PageModule, text: str, error: str) -> None:
    assert error in files.error("readChat(text)", text=text)


def test_documents_stand_before_the_question(files: PageModule) -> None:
    documents = [{"name": "a.md", "text": "# A\n"}, {"name": "b.txt", "text": "B"}]
    message = {"role": "user", "content": "Why?"}
    sent = files.run("asSent(node)", node={"message": message, "documents": documents})
    text = "Document a.md:\n# A\n\nDocument b.txt:\nB\n\nWhy?"
    assert sent == {"role": "user", "content": text}
    assert files.run("asSent(node)", node={"message": message}) == message


# The browser's storage

STORAGE = """
class FakeStorage {
  #items = new Map();
  limit = Infinity;
  get length() { return this.#items.size; }
  key(index) { return [...this.#items.keys()][index]; }
  getItem(name) { return this.#items.get(name) ?? null; }
  setItem(name, value) {
    if (value.length > this.limit) throw new Error("QuotaExceededError");
    this.#items.set(name, value);
  }
  removeItem(name) { this.#items.delete(name); }
}
"""


@pytest.fixture
def stores() -> PageModule:
    module = PageModule("message_tree", "chat_store")
    module.run(f"globalThis.storage = new ({STORAGE.strip()})()")
    module.run("globalThis.store = new ChatStore(() => storage, 'all')")
    return module


def stored_chat(name: str, updated: int, text: str = "") -> dict[str, Any]:
    node = {"id": 1, "parent": 0, "message": {"role": "user", "content": text}}
    return {"id": name, "title": f"Chat {name}", "updated": updated, "tree": {"leaf": 1, "nodes": [node]}}


def test_chats_are_listed_newest_first_and_found_by_their_words(stores: PageModule) -> None:
    for name, updated, text in (("a", 1, "About trees"), ("b", 3, "About roots"), ("c", 2, "Else")):
        assert stores.run("store.save(chat)", chat=stored_chat(name, updated, text)) is None
    again = "new ChatStore(() => storage, 'all')"
    assert stores.run(f"{again}.list().map(({{ id }}) => id)") == ["b", "c", "a"]
    assert stores.run(f"{again}.list('ABOUT tr').map(({{ id }}) => id)") == ["a"]
    assert stores.run(f"{again}.get('a')") == stored_chat("a", 1, "About trees")
    stores.run("store.remove('b')")
    assert stores.run(f"{again}.list().map(({{ id }}) => id)") == ["c", "a"]


def test_each_key_has_chats_of_its_own(stores: PageModule) -> None:
    names = [stores.run("ownerName(key)", key=key) for key in (None, "secret", "secret2")]
    assert len(set(names)) == 3 and "secret" not in "".join(names)
    stores.run("store.save(chat)", chat=stored_chat("a", 1))
    other = "new ChatStore(() => storage, owner)"
    assert stores.run(f"{other}.list()", owner=names[1]) == []
    assert stores.run(f"{other}.get('a')", owner=names[1]) is None


def test_a_full_storage_is_said_and_the_chat_lasts_with_the_tab(stores: PageModule) -> None:
    stores.run("storage.limit = 10")
    assert "storage for the page is full" in stores.run("store.save(chat)", chat=stored_chat("a", 1))
    assert stores.run("store.list().length") == 1


def test_a_forbidden_storage_is_said_and_chats_last_with_the_tab(stores: PageModule) -> None:
    stores.run("globalThis.store = new ChatStore(() => { throw new Error('SecurityError'); }, 'all')")
    assert "does not let the page keep chats" in stores.run("store.trouble")
    assert "does not let the page keep chats" in stores.run("store.save(chat)", chat=stored_chat("a", 1))
    assert stores.run("store.list().length") == 1


def test_foreign_entries_are_left_alone_and_another_tab_s_chats_are_noticed(stores: PageModule) -> None:
    stores.run("storage.setItem('arbora-chats/all/x', 'no JSON')")
    stores.run("storage.setItem('other', '{}')")
    stores.run("globalThis.store = new ChatStore(() => storage, 'all')")
    assert stores.run("store.list()") == []
    stores.run("storage.setItem('arbora-chats/all/a', JSON.stringify(chat))", chat=stored_chat("a", 1))
    assert stores.run("store.notice('arbora-chats/all/a')") == "a"
    assert stores.run("store.notice('other')") is None
    assert stores.run("store.list().map(({ id }) => id)") == ["a"]


# Settings


def test_the_sampling_fields_are_those_of_the_terminal_s_chat(sampling: PageModule) -> None:
    assert set(sampling.run("FIELDS.map(({ name }) => name)")) == set(SETTINGS)


FIELD = "FIELDS.find((field) => field.name === name)"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("temperature", "", {}),
        ("temperature", " 0.5 ", {"value": 0.5}),
        ("temperature", "3", {"error": "Temperature: 3 must be between 0 and 2."}),
        ("temperature", "warm", {"error": "Temperature: warm is no number."}),
        ("top_k", "1.5", {"error": "Top k: 1.5 is no whole number."}),
        ("max_tokens", "0", {"error": "Max tokens: 0 must be at least 1."}),
        ("seed", "-3", {"value": -3}),
        ("stop", "END\n\\n\\n", {"value": ["END", "\n\n"]}),
        ("stop", "x\n" * 17, {"error": "Stop texts: there are 17, but at most 16 are allowed."}),
        ("reasoning_effort", "low", {"value": "low"}),
        ("cache_prompt", "false", {"value": False}),
        ("cache_salt", " mine ", {"value": "mine"}),
    ],
)
def test_a_field_s_box_is_read(sampling: PageModule, name: str, text: str, expected: Any) -> None:
    read = sampling.run(f"readField({FIELD}, text)", name=name, text=text)
    assert read == expected
    if "value" in read:
        again = f"readField({FIELD}, fieldText({FIELD}, value))"
        assert sampling.run(again, name=name, value=read["value"]) == read


def test_an_empty_box_says_the_model_s_own_value(sampling: PageModule) -> None:
    own = {"temperature": 0.6, "top_p": 0.949999988079071}
    default = f"defaultText({FIELD}, own)"
    assert sampling.run(default, name="temperature", own=own) == "0.6 (the server's)"
    assert sampling.run(default, name="top_p", own=own) == "0.95 (the server's)"
    assert sampling.run(default, name="seed", own=own) == "random"
    assert sampling.run(default, name="temperature", own=None) == "1"


# The form of a schema

PERSON = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "maxLength": 20, "description": "Whole name"},
        "job": {"enum": ["baker", "smith"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "friend"],
    "additionalProperties": False,
}


def test_the_properties_of_a_schema_are_rows(forms: PageModule) -> None:
    rows = forms.run("rowsOf(schema)", schema=PERSON)
    assert [(row["name"], row["type"], row["isRequired"], row["values"]) for row in rows] == [
        ("name", "string", True, ""),
        ("job", "string", False, "baker, smith"),
        ("tags", "list of strings", False, ""),
        ("friend", "other", True, ""),
    ]
    assert rows[0]["description"] == "Whole name"


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"anyOf": []}, True, {"type": "object", "properties": []}]
)
def test_a_schema_without_properties_has_no_form(forms: PageModule, schema: Any) -> None:
    assert forms.run("rowsOf(schema)", schema=schema) is None


def test_a_change_keeps_what_the_form_does_not_know(forms: PageModule) -> None:
    changed = forms.run("changeProperty(schema, 'name', { name: 'full name' })", schema=PERSON)
    assert list(changed["properties"]) == ["full name", "job", "tags", "friend"]
    assert changed["properties"]["full name"] == PERSON["properties"]["name"]  # type: ignore[index]
    assert changed["required"] == ["full name", "friend"]
    assert (changed["title"], changed["additionalProperties"]) == ("Person", False)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("name", {"type": "integer"}, {"type": "integer", "description": "Whole name"}),
        ("name", {"description": ""}, {"type": "string", "maxLength": 20}),
        ("job", {"values": "cook"}, {"enum": ["cook"]}),
        ("tags", {"type": "list of numbers"}, {"type": "array", "items": {"type": "number"}}),
        (
            "friend",
            {"description": "Or null"},
            {"anyOf": [{"$ref": "#"}, {"type": "null"}], "description": "Or null"},
        ),
    ],
)
def test_a_column_of_a_row_changes_its_property(
    forms: PageModule, name: str, changes: Any, expected: Any
) -> None:
    changed = forms.run("changeProperty(schema, name, changes)", schema=PERSON, name=name, changes=changes)
    assert changed["properties"][name] == expected


def test_allowed_values_of_a_number_are_numbers(forms: PageModule) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    changed = forms.run("changeProperty(schema, 'n', { values: '1, 2' })", schema=schema)
    assert changed["properties"]["n"]["enum"] == [1, 2]


def test_a_required_property_stands_in_the_order_of_the_properties(forms: PageModule) -> None:
    changed = forms.run("changeProperty(schema, 'job', { isRequired: true })", schema=PERSON)
    assert changed["required"] == ["name", "job", "friend"]
    changed = forms.run("changeProperty(schema, 'job', { isRequired: false })", schema=changed)
    assert changed["required"] == ["name", "friend"]


def test_properties_are_added_and_removed(forms: PageModule) -> None:
    added = forms.run("addProperty(addProperty(emptySchema()))")
    assert list(added["properties"]) == added["required"] == ["property_1", "property_2"]
    left = forms.run("addProperty(removeProperty(schema, 'property_1'))", schema=added)
    assert list(left["properties"]) == ["property_2", "property_3"]


def test_a_name_that_another_property_has_changes_nothing(forms: PageModule) -> None:
    assert forms.run("changeProperty(schema, 'name', { name: 'job' })", schema=PERSON) == PERSON


# Tools


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "mock": {"a": 1}}',
        '[{"type": "function", "function": {"name": "f"}, "mock": {"a": 1}}]',
        '[{"type": "function", "function": {"name": "f", "mock": "{\\"a\\":1}"}}]',
    ],
)
def test_mock_values_are_kept_from_the_server(tools: PageModule, text: str) -> None:
    read = tools.run("readTools(text)", text=text)
    assert read == {"tools": [{"type": "function", "function": {"name": "f"}}], "mocks": {"f": '{"a":1}'}}


def test_a_tool_s_row_changes_the_json(tools: PageModule) -> None:
    text = '[{"type": "function", "function": {"name": "f", "strict": true, "description": "Old"}}]'
    changed = tools.run("changeTool(text, 0, { description: '', mock: '1' })", text=text)
    assert json.loads(changed) == [{"name": "f", "strict": True, "mock": "1"}]
    (row,) = tools.run("toolRows(text)", text=changed)
    assert (row["name"], row["description"], row["mock"]) == ("f", "", "1")
    more = tools.run("changeTool(text, 1, { name: 'g' })", text=changed)
    assert [each["name"] for each in json.loads(more)] == ["f", "g"]
    assert tools.run("removeTool(text, 0)", text=changed) == ""
    assert tools.run("toolRows('[')") is None
