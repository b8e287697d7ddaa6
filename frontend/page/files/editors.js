// The dialogs of the schema and the tools: a form beside the JSON that it edits.
import { byId, element, iconButton } from "./dom.js";
import { readSchema } from "./schema.js";
import { SchemaForm, box, labelled } from "./schema_editor.js";
import { emptySchema } from "./schema_form.js";
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
  let known = ""; // the last text that was no mistake; the form changes it
  const change = (text) => {
    known = text;
    write("tools", text);
  };
  const redraw = (text) => {
    change(text);
    draw();
  };
  const draw = () => {
    const rows = toolRows(known);
    const cards = rows.map((row, index) => toolCard(row, { change: (changes) => change(changeTool(known, index, changes)), remove: () => redraw(removeTool(known, index)) }, index));
    const add = () => {
      redraw(changeTool(known, rows.length, { name: `tool_${rows.length + 1}`, parameters: emptySchema() }));
      focusLast();
    };
    const none = rows.length ? "" : element("p", { class: "hint" }, "Without tools the model answers by text alone.");
    byId("tools-form").replaceChildren(none, ...cards, element("button", { type: "button", class: "add", onclick: add }, "Add a tool"));
  };
  const show = () => {
    const text = byId("tools").value;
    if (text === known || toolRows(text) === null) return;
    known = text;
    draw();
  };
  byId("tools").addEventListener("input", show);
  byId("tools-badge").addEventListener("click", show);
  draw();
}

function focusLast() {
  const name = [...byId("tools-form").querySelectorAll(".tool-card")].at(-1)?.querySelector("input");
  name?.focus();
  name?.select();
}

function toolCard(row, { change, remove }, index) {
  const field = (column, what, placeholder) =>
    labelled(what, box({ value: row[column], placeholder, "aria-label": `${what} of tool ${index + 1}` }, "input", (value) => change({ [column]: value.trim() })));
  const parameters = new SchemaForm((schema) => change({ parameters: schema }), "It takes no parameters.");
  parameters.show(row.parameters);
  return element(
    "section",
    { class: "tool-card", "aria-label": `Tool ${index + 1}` },
    element("div", { class: "row" }, field("name", "Name", "needed"), iconButton("delete", `Remove tool ${index + 1}`, remove)),
    field("description", "Description", "what it does"),
    parameters.element,
    field("mock", "Mock value", "none; the page answers calls by it"),
  );
}
