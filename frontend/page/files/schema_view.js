// A JSON reply as it grows: its value so far, and the part of the schema that is open.
import { element } from "./dom.js";
import { readGrowing } from "./growing_json.js";
import { allowed, partsAt, pathText, stillRequired } from "./schema.js";

export class SchemaView {
  #state = element("p", { class: "open-part" });
  #value = element("pre", { tabindex: 0, "aria-label": "The value so far" });

  constructor(schema) {
    this.schema = schema;
    this.element = element(
      "div",
      { class: "schema-view", title: "Read by this page from the reply's text, not from the server's automaton." },
      this.#state,
      this.#value,
    );
  }

  show(text, isFinished) {
    const { state, value, path } = readGrowing(text);
    this.#value.textContent = value === undefined ? text : JSON.stringify(value, null, 2);
    this.#value.hidden = !text;
    this.#state.textContent = isFinished && state !== "open" ? ENDS[state] : this.#open(state, value, path, isFinished);
  }

  #open(state, value, path, isFinished) {
    if (state === "invalid" || state === "complete") return ENDS[state];
    const place = path.length ? pathText(path) : "the value";
    const required = stillRequired(this.schema, path, value);
    const missing = required.length ? ` Still required here: ${required.join(", ")}.` : "";
    const begin = isFinished ? "The reply ended inside" : "Open:";
    return `${begin} ${place} (${allowed(partsAt(this.schema, path))}).${missing}`;
  }
}

const ENDS = {
  complete: "Complete JSON.",
  invalid: "The text is not JSON.",
  empty: "The reply is empty.",
};
