// The dialogs of the schema and the tools: a form beside the JSON that it edits.
import { byId, element, iconButton } from "./dom.js";
import { readSchema } from "./schema.js";
import { SchemaForm, box } from "./schema_editor.js";
import { changeTool, removeTool, toolRows } from "./tools.js";

export function watchEditors() {
  for (const [button, dialog] of [["schema-badge", "schema-dialog"], ["tools-badge", "tools-dialog"], ["open-settings", "settings"]]) {
    byId(button).addEventListener("click", () => byId(dialog).showModal());
  }
  for (const dialog of document.querySelectorAll("dialog")) {
    for (const close of dialog.querySelectorAll(".close")) close.addEventListener("click", () => dialog.close());
    if (dialog.id !== "key-dialog") dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }
  for (const id of ["schema", "tools"]) byId(`clear-${id}`).addEventListener("click", () => write(id, ""));
  watchSchema();
  watchTools();
}

/** Changes a box as if the user had. */
function write(id, text) {
  byId(id).value = text;
  byId(id).dispatchEvent(new Event("input", { bubbles: true }));
  byId(id).dispatchEvent(new Event("change", { bubbles: true }));
}

function watchSchema() {
  let own = null; // the text that the form has written
  const form = new SchemaForm((schema) => {
    own = JSON.stringify(schema, null, 2);
    write("schema", own);
  }, "Without a schema the reply is any text.");
  byId("schema-form").append(form.element);
  const show = () => {
    if (byId("schema").value === own) return;
    own = null;
    const { schema, error } = readSchema(byId("schema").value);
    if (!error) form.show(schema ?? null);
  };
  byId("schema").addEventListener("input", show);
  byId("schema-badge").addEventListener("click", show);
  show();
}

function watchTools() {
  let own = null;
  const change = (text) => {
    own = text;
    write("tools", text);
  };
  const draw = () => {
    const rows = toolRows(byId("tools").value);
    if (rows === null) return;
    const cards = rows.map((row, index) => toolCard(row, index, (changed) => (change(changed), draw()), change));
    const add = element("button", { type: "button", class: "add", onclick: () => (change(withTool(rows)), draw(), focusLast()) }, "Add a tool");
    const none = rows.length ? "" : element("p", { class: "hint" }, "Without tools the model answers by text alone.");
    byId("tools-form").replaceChildren(none, ...cards, add);
  };
  const show = () => byId("tools").value !== own && draw();
  byId("tools").addEventListener("input", show);
  byId("tools-badge").addEventListener("click", show);
  draw();
}

function withTool(rows) {
  const parameters = { type: "object", properties: {}, required: [], additionalProperties: false };
  return changeTool(byId("tools").value, rows.length, { name: `tool_${rows.length + 1}`, parameters });
}

function focusLast() {
  const name = [...byId("tools-form").querySelectorAll(".tool-card")].at(-1)?.querySelector("input");
  name?.focus();
  name?.select();
}

/** `redraw` and `change` get the changed text; the latter keeps the form as it is. */
function toolCard(row, index, redraw, change) {
  const changed = (changes) => changeTool(byId("tools").value, index, changes);
  const name = box({ value: row.name, "aria-label": `Name of tool ${index + 1}` }, (value) => value.trim() && redraw(changed({ name: value.trim() })));
  const about = box({ value: row.description, placeholder: "What it does", "aria-label": `Description of ${row.name}` }, (value) => change(changed({ description: value })));
  const mock = box({ value: row.mock, placeholder: "Mock value: answers the calls by itself", "aria-label": `Mock value of ${row.name}` }, (value) => change(changed({ mock: value })));
  const parameters = new SchemaForm((schema) => change(changed({ parameters: schema })), "It takes no parameters.");
  parameters.show(row.parameters);
  const remove = iconButton("delete", `Remove ${row.name}`, () => redraw(removeTool(byId("tools").value, index)));
  return element("section", { class: "tool-card", "aria-label": row.name }, element("div", { class: "row" }, name, remove), about, parameters.element, mock);
}
