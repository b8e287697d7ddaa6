// A schema as a form: a row for each property. It edits the same JSON as the text beside it.
import { element, iconButton } from "./dom.js";
import { TYPES, addProperty, changeProperty, emptySchema, removeProperty, rowsOf } from "./schema_form.js";

export class SchemaForm {
  #onChange;
  #schema = null;
  #none;

  /** `onChange` gets the changed schema; `none` says what an empty form means. */
  constructor(onChange, none) {
    this.#onChange = onChange;
    this.#none = none;
    this.element = element("div", { class: "schema-form" });
  }

  /** Shows a schema; null: none yet. */
  show(schema) {
    this.#schema = schema;
    const rows = schema === null ? [] : rowsOf(schema);
    if (rows === null) {
      this.element.replaceChildren(element("p", { class: "hint" }, "This schema is not one of an object with properties. Change it as JSON."));
      return;
    }
    const none = rows.length ? "" : element("p", { class: "hint" }, this.#none);
    const add = element("button", { type: "button", class: "add", onclick: () => this.#add() }, "Add a property");
    this.element.replaceChildren(none, ...rows.map((row, index) => this.#row(row, index + 1)), add);
  }

  /** The boxes of a property. A change leaves them in their place, so that a click that ends it reaches its button. */
  #row(row, number) {
    let { name } = row;
    const change = (changes) => {
      this.#schema = changeProperty(this.#schema, name, changes);
      this.#onChange(this.#schema);
    };
    const label = (what) => `${what} of property ${number}`;
    const nameBox = box({ value: name, "aria-label": label("Name") }, "change", (value) => {
      change({ name: value.trim() });
      if (Object.hasOwn(this.#schema.properties, value.trim())) name = value.trim();
      nameBox.value = name;
    });
    const types = row.type === "other" ? ["other", ...TYPES] : TYPES;
    const type = element("select", { "aria-label": label("Type") }, ...types.map((each) => element("option", { value: each, selected: each === row.type }, each)));
    type.addEventListener("change", () => change({ type: type.value }));
    const required = element("input", { type: "checkbox", checked: row.isRequired });
    required.addEventListener("change", () => change({ isRequired: required.checked }));
    const values = box({ value: row.values, placeholder: "any, or a, b, c", "aria-label": label("Allowed values") }, "input", (value) => change({ values: value }));
    const about = box({ value: row.description, placeholder: "none", "aria-label": label("Description") }, "input", (value) => change({ description: value }));
    const remove = iconButton("delete", `Remove property ${number}`, () => this.#redraw(removeProperty(this.#schema, name)));
    const isRequired = element("label", { class: "check", title: "Required" }, required, "required");
    const boxes = [labelled("Name", nameBox), labelled("Type", type), isRequired, remove, labelled("Allowed values", values), labelled("Description", about)];
    return element("div", { class: "property", role: "group", "aria-label": `Property ${number}` }, ...boxes);
  }

  #add() {
    this.#redraw(addProperty(this.#schema ?? emptySchema()));
    const name = [...this.element.querySelectorAll(".property")].at(-1)?.querySelector("input");
    name?.focus();
    name?.select();
  }

  #redraw(schema) {
    this.show(schema);
    this.#onChange(schema);
  }
}

/** A box that tells its value with each event of this `type`. */
export function box(attributes, type, onChange) {
  const made = element("input", { autocomplete: "off", spellcheck: "false", ...attributes });
  made.addEventListener(type, () => onChange(made.value));
  return made;
}

/** A box below its visible label. */
export function labelled(text, made) {
  return element("label", { class: "labelled" }, element("span", {}, text), made);
}
