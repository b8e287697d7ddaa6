// The settings of the chat, checked while they are typed.
import { getJson } from "./api.js";
import { byId, element, plural } from "./dom.js";
import { readSchema } from "./schema.js";
import { readTools } from "./tools.js";

/** Fills the list of models; a list that can't be fetched stays as it is. */
export async function showModels() {
  const { data } = await getJson("v1/models");
  const chosen = byId("model").value;
  byId("model").replaceChildren(...data.map(({ id }) => element("option", { value: id, selected: id === chosen }, id)));
}

export function watchSettings() {
  check("schema", () => {
    const { schema, error } = readSchema(byId("schema").value);
    return { error, text: schema ? "A readable schema. If the server can't enforce it, it says so when you send." : "" };
  });
  check("tools", () => {
    const { tools, error } = readTools(byId("tools").value);
    return { error, text: tools ? `${plural(tools.length, "tool")}: ${tools.map((tool) => tool.function.name).join(", ")}` : "" };
  });
}

/** Shows under a field what it has, or its mistake. */
function check(id, read) {
  const show = () => {
    const { error, text } = read();
    byId(`${id}-state`).textContent = error ?? text;
    byId(`${id}-state`).classList.toggle("error", Boolean(error));
    byId(id).setAttribute("aria-invalid", String(Boolean(error)));
  };
  byId(id).addEventListener("input", show);
  show();
}

/** The settings as fields of a request and `schema`, or the first mistake as `error`. */
export function readSettings() {
  const schema = readSchema(byId("schema").value);
  const tools = readTools(byId("tools").value);
  const error = schema.error ?? tools.error ?? mistakenNumber();
  if (error) return { error };
  const fields = { model: byId("model").value };
  if (byId("temperature").value !== "") fields.temperature = Number(byId("temperature").value);
  if (byId("most-tokens").value !== "") fields.max_tokens = Number(byId("most-tokens").value);
  if (tools.tools?.length) fields.tools = tools.tools;
  if (schema.schema) {
    fields.response_format = { type: "json_schema", json_schema: { name: "reply", schema: schema.schema } };
  }
  const system = byId("system").value.trim();
  return { fields, schema: schema.schema, system };
}

function mistakenNumber() {
  for (const id of ["temperature", "most-tokens"]) {
    const field = byId(id);
    if (!field.validity.valid) return `${field.labels[0].textContent}: ${field.validationMessage}`;
  }
  return null;
}
