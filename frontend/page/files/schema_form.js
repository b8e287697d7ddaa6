// The properties of an object's schema as rows of a form, and changes of the schema by them. What the form does not know stays.

export const TYPES = ["string", "integer", "number", "boolean", "list of strings", "list of numbers", "object"];
const EMPTY = { type: "object", properties: {}, required: [], additionalProperties: false };

export function emptySchema() {
  return structuredCopy(EMPTY);
}

function structuredCopy(value) {
  return JSON.parse(JSON.stringify(value));
}

/** A row `{name, type, isRequired, values, description}` for each property; null if the schema is not one of an object. */
export function rowsOf(schema) {
  const isPlain = schema?.type === "object" && typeof (schema.properties ?? {}) === "object";
  if (!isPlain || schema.properties === null || Array.isArray(schema.properties)) return null;
  return Object.entries(schema.properties ?? {}).map(([name, part]) => ({
    name,
    type: typeOf(part),
    isRequired: Boolean(schema.required?.includes(name)),
    values: (part?.enum ?? []).map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join(", "),
    description: part?.description ?? "",
  }));
}

/** The form's name of a property's type; "other" if the form does not know it. */
function typeOf(part) {
  if (part?.type === "array") {
    if (part.items?.type === "string") return "list of strings";
    return part.items?.type === "number" ? "list of numbers" : "other";
  }
  if (part?.type === undefined && Array.isArray(part?.enum) && part.enum.every((each) => typeof each === "string")) return "string";
  return TYPES.includes(part?.type) ? part.type : "other";
}

/** A schema with one more property, a required string. */
export function addProperty(schema) {
  const names = Object.keys(schema.properties ?? {});
  let number = names.length + 1;
  while (names.includes(`property_${number}`)) number++;
  const name = `property_${number}`;
  return { ...schema, properties: { ...schema.properties, [name]: { type: "string" } }, required: [...(schema.required ?? []), name] };
}

export function removeProperty(schema, name) {
  const { [name]: _, ...properties } = schema.properties;
  return { ...schema, properties, required: (schema.required ?? []).filter((each) => each !== name) };
}

/** The schema with the changed columns of a row. A name that another property has changes nothing. */
export function changeProperty(schema, name, changes) {
  const wanted = changes.name ?? name;
  if (!wanted || (wanted !== name && Object.hasOwn(schema.properties, wanted))) return schema;
  const entries = Object.entries(schema.properties).map(([each, part]) => (each === name ? [wanted, changePart(part, changes)] : [each, part]));
  let required = (schema.required ?? []).map((each) => (each === name ? wanted : each));
  if (changes.isRequired === true && !required.includes(wanted)) required = inOrder(entries, [...required, wanted]);
  if (changes.isRequired === false) required = required.filter((each) => each !== wanted);
  return { ...schema, properties: Object.fromEntries(entries), required };
}

function inOrder(entries, required) {
  const known = entries.map(([name]) => name).filter((name) => required.includes(name));
  return [...known, ...required.filter((name) => !known.includes(name))];
}

function changePart(part, { type, values, description }) {
  let changed = { ...part };
  if (type !== undefined && type !== "other") changed = withType(changed, type);
  if (values !== undefined) {
    const list = values.split(",").map((each) => each.trim()).filter(Boolean);
    if (list.length) changed.enum = list.map((each) => (["integer", "number"].includes(changed.type) && each !== "" && Number.isFinite(Number(each)) ? Number(each) : each));
    else delete changed.enum;
  }
  if (description !== undefined) {
    if (description) changed.description = description;
    else delete changed.description;
  }
  return changed;
}

/** The part with another type; keywords that bind values of the former type go. */
function withType({ description }, type) {
  const about = description ? { description } : {};
  if (type.startsWith("list of ")) return { type: "array", items: { type: type.slice("list of ".length, -1) }, ...about };
  if (type === "object") return { ...structuredCopy(EMPTY), ...about };
  return { type, ...about };
}
