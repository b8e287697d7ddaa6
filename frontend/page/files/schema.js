// JSON schemas: mistakes that can be seen while typing, and the part of a schema at a place of a value.

const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"];
const INSIDE = ["items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"];
const LISTS = ["anyOf", "oneOf", "allOf", "prefixItems"];
const MAPS = ["properties", "patternProperties", "$defs", "definitions"];
const MOST_ALTERNATIVES = 64; // followed at one place

/** The schema in `text`: `{schema}`, `{error}`, or neither if the text is empty. */
export function readSchema(text) {
  if (!text.trim()) return {};
  let schema;
  try {
    schema = JSON.parse(text);
  } catch (error) {
    return { error: `Not JSON yet: ${error.message}` };
  }
  if (!isObject(schema)) return { error: "A schema is an object, such as {\"type\": \"object\"}." };
  const error = mistake(schema, "schema");
  return error ? { error } : { schema };
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function mistake(schema, at) {
  if (typeof schema === "boolean") return null;
  if (!isObject(schema)) return `${at} must be an object, true or false.`;
  for (const type of schema.type === undefined ? [] : [schema.type].flat()) {
    if (!TYPES.includes(type)) return `${at}.type is ${JSON.stringify(type)}; use ${TYPES.join(", ")}.`;
  }
  if (schema.enum !== undefined && !(Array.isArray(schema.enum) && schema.enum.length)) return `${at}.enum must be a list of values.`;
  if (schema.required !== undefined && !(Array.isArray(schema.required) && schema.required.every((each) => typeof each === "string"))) {
    return `${at}.required must be a list of property names.`;
  }
  for (const name of MAPS.filter((each) => schema[each] !== undefined)) {
    if (!isObject(schema[name])) return `${at}.${name} must be an object.`;
    for (const [key, part] of Object.entries(schema[name])) {
      const found = mistake(part, `${at}.${name}.${key}`);
      if (found) return found;
    }
  }
  for (const name of LISTS.filter((each) => schema[each] !== undefined)) {
    if (!Array.isArray(schema[name])) return `${at}.${name} must be a list of schemas.`;
    for (const [index, part] of schema[name].entries()) {
      const found = mistake(part, `${at}.${name}[${index}]`);
      if (found) return found;
    }
  }
  for (const name of INSIDE.filter((each) => schema[each] !== undefined)) {
    const found = mistake(schema[name], `${at}.${name}`);
    if (found) return found;
  }
  return null;
}

/** The parts of the schema that apply at `path`, references and alternatives followed. */
export function partsAt(schema, path) {
  let parts = alternatives(schema, schema);
  for (const step of path) {
    parts = parts.flatMap((part) => below(part, step)).flatMap((part) => alternatives(part, schema)).slice(0, MOST_ALTERNATIVES);
  }
  return parts;
}

function below(part, step) {
  if (typeof step === "number") return [part.prefixItems?.[step] ?? part.items].filter(isObject);
  if (part.properties && Object.hasOwn(part.properties, step)) return [part.properties[step]].filter(isObject);
  const matching = Object.entries(part.patternProperties ?? {}).filter(([pattern]) => matches(pattern, step));
  return matching.length ? matching.map(([, each]) => each).filter(isObject) : [part.additionalProperties].filter(isObject);
}

function matches(pattern, text) {
  try {
    return new RegExp(pattern, "u").test(text);
  } catch {
    return false;
  }
}

function alternatives(part, whole) {
  const found = [];
  const waiting = [part];
  for (let seen = 0; waiting.length && seen < MOST_ALTERNATIVES; seen++) {
    const next = waiting.shift();
    if (!isObject(next)) continue;
    found.push(next);
    if (typeof next.$ref === "string") waiting.push(referred(next.$ref, whole));
    waiting.push(...(next.anyOf ?? []), ...(next.oneOf ?? []), ...(next.allOf ?? []));
  }
  return found;
}

function referred(reference, whole) {
  if (!reference.startsWith("#")) return undefined;
  const steps = reference.slice(1).split("/").slice(1);
  return steps.reduce((part, step) => part?.[step.replaceAll("~1", "/").replaceAll("~0", "~")], whole);
}

/** What the parts of a schema allow, in a few words. */
export function allowed(parts) {
  const fixed = parts.flatMap((part) => (part.const !== undefined ? [part.const] : (part.enum ?? [])));
  if (fixed.length) return `one of ${fixed.slice(0, 8).map((each) => JSON.stringify(each)).join(", ")}${fixed.length > 8 ? ", …" : ""}`;
  const types = new Set(parts.flatMap((part) => part.type ?? (part.properties ? "object" : [])));
  return [...types].join(" or ") || "any value";
}

/** The properties that a part of the schema at `path` requires and that `value`, the whole value so far, lacks. */
export function stillRequired(schema, path, value) {
  const here = path.reduce((inner, step) => inner?.[step], value);
  if (!isObject(here)) return [];
  const names = partsAt(schema, path).flatMap((part) => part.required ?? []);
  return [...new Set(names)].filter((name) => !Object.hasOwn(here, name));
}

/** A path as text, such as `person.names[0]`. */
export function pathText(path) {
  return path.map((step, index) => (typeof step === "number" ? `[${step}]` : (index ? "." : "") + step)).join("");
}
