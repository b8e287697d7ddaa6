// The settings of a chat, checked while they are typed: model, system prompt, sampling, schema and tools.
import { byId, element, plural } from "./dom.js";
import { chooseModel, fetchModels, modelCard } from "./models.js";
import { FIELDS, defaultText, fieldText, readField } from "./sampling.js";
import { readSchema } from "./schema.js";
import { readTools } from "./tools.js";

/** Fills the list of models, as `fetchModels`. */
export async function showModels() {
  const hasStarted = await fetchModels();
  showDefaults();
  return hasStarted;
}

/** Makes the boxes of the settings. `onChange` is called when one has changed. */
export function watchSettings(onChange) {
  byId("sampling").append(...FIELDS.map(samplingRow));
  for (const id of ["schema", "tools"]) {
    byId(id).addEventListener("input", () => showState(id));
  }
  byId("model").addEventListener("change", showDefaults);
  for (const id of ["model", "system", "sampling", "schema", "tools", "must-call", "rounds"]) {
    byId(id).addEventListener("change", () => {
      showStates();
      onChange();
    });
  }
  byId("reset-settings").addEventListener("click", () => {
    showSettings({ ...keptSettings(), system: "", sampling: {} });
    onChange();
  });
  showStates();
}

function samplingRow(field) {
  const id = boxId(field);
  const hint = element("p", { class: "hint", id: `${id}-hint` }, field.hint);
  return element("div", { class: `field ${field.kind ?? "number"}` }, element("label", { for: id }, field.label), samplingBox(field, id), hint);
}

function samplingBox(field, id) {
  const common = { id, "aria-describedby": `${id}-hint`, autocomplete: "off" };
  if (field.kind === "choice") {
    const options = field.choices.map((each) => element("option", { value: each }, field.names?.[each] ?? each));
    return element("select", common, element("option", { value: "" }, field.usual), ...options);
  }
  const isLong = field.kind === "lines";
  const box = element(isLong ? "textarea" : "input", isLong ? { ...common, rows: 2, spellcheck: "false" } : { ...common, inputmode: field.kind === "text" ? "text" : "decimal" });
  box.addEventListener("input", () => showField(field));
  return box;
}

/** Shows below a field's box what it is for, or what is wrong with its value. */
function showField(field) {
  const { error } = readField(field, byId(boxId(field)).value);
  byId(boxId(field)).setAttribute("aria-invalid", String(Boolean(error)));
  byId(`${boxId(field)}-hint`).textContent = error ?? field.hint;
  byId(`${boxId(field)}-hint`).classList.toggle("error", Boolean(error));
}

function boxId({ name }) {
  return `${name}-field`;
}

function showDefaults() {
  for (const field of FIELDS) byId(boxId(field)).placeholder = defaultText(field, modelCard()?.sampling);
}

/** Shows below a box what it has, or its mistake, and on its badge whether it is used. */
function showState(id) {
  const { error, text, badge } = id === "schema" ? schemaState() : toolsState();
  byId(`${id}-state`).textContent = error ?? text;
  byId(`${id}-state`).classList.toggle("error", Boolean(error));
  byId(id).setAttribute("aria-invalid", String(Boolean(error)));
  byId(`${id}-badge`).classList.toggle("used", Boolean(byId(id).value.trim()));
  byId(`${id}-badge`).classList.toggle("wrong", Boolean(error));
  byId(`${id}-badge-text`).textContent = badge;
}

function schemaState() {
  const { schema, error } = readSchema(byId("schema").value);
  const names = Object.keys(schema?.properties ?? {});
  return {
    error,
    text: schema ? "A readable schema. If the server can't enforce it, it says so when you send." : "",
    badge: schema && names.length ? `JSON: ${names.slice(0, 3).join(", ")}${names.length > 3 ? ", …" : ""}` : "JSON schema",
  };
}

function toolsState() {
  const { tools, error } = readTools(byId("tools").value);
  const text = tools ? `${plural(tools.length, "tool")}: ${tools.map((tool) => tool.function.name).join(", ")}` : "";
  return { error, text, badge: tools?.length ? plural(tools.length, "tool") : "Tools" };
}

function showStates() {
  FIELDS.forEach(showField);
  showState("schema");
  showState("tools");
  const isSet = Boolean(byId("system").value.trim()) || FIELDS.some((field) => byId(boxId(field)).value !== "");
  byId("open-settings").classList.toggle("used", isSet);
}

/** The settings as a chat keeps them. */
export function keptSettings() {
  const values = FIELDS.map((field) => [field.name, readField(field, byId(boxId(field)).value).value]);
  const [model, system, schema, tools] = ["model", "system", "schema", "tools"].map((id) => byId(id).value);
  const sampling = Object.fromEntries(values.filter(([, value]) => value !== undefined));
  return { model, system, sampling, schema, tools, mustCall: byId("must-call").checked, rounds: byId("rounds").value };
}

/** Shows the settings of a chat; a model that is not served stays as it is. */
export function showSettings({ model, system = "", sampling = {}, schema = "", tools = "", mustCall = false, rounds = "5" }) {
  chooseModel(model);
  for (const [id, value] of Object.entries({ system, schema, tools, rounds })) byId(id).value = value;
  for (const field of FIELDS) byId(boxId(field)).value = fieldText(field, sampling[field.name]);
  byId("must-call").checked = mustCall;
  showDefaults();
  showStates();
}

/** The settings as fields of a request, `schema`, `mocks` and `system`; or the first mistake as `error`, and the id of the dialog with it as `place`. */
export function readSettings() {
  const schema = readSchema(byId("schema").value);
  const tools = readTools(byId("tools").value);
  const sampling = FIELDS.map((field) => [field.name, readField(field, byId(boxId(field)).value)]);
  const wrong = sampling.map(([, read]) => read.error).find(Boolean);
  if (schema.error) return { error: schema.error, place: "schema-dialog" };
  if (tools.error) return { error: tools.error, place: "tools-dialog" };
  if (wrong) return { error: wrong, place: "settings" };
  const fields = { model: byId("model").value };
  for (const [name, { value }] of sampling) if (value !== undefined) fields[name] = value;
  if (tools.tools?.length) fields.tools = tools.tools;
  if (schema.schema) {
    fields.response_format = { type: "json_schema", json_schema: { name: "reply", schema: schema.schema } };
  }
  const rounds = Math.max(0, Math.floor(Number(byId("rounds").value)) || 0);
  return { fields, schema: schema.schema, mocks: tools.mocks ?? {}, mustCall: byId("must-call").checked, rounds, system: byId("system").value.trim() };
}
