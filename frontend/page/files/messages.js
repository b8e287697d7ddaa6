// The messages of a conversation as elements.
import { element } from "./dom.js";
import { GrowingMarkdown } from "./markdown.js";
import { promptView } from "./prompt_view.js";
import { SchemaView } from "./schema_view.js";

const ENDS = {
  length: "The reply reached the limit of its length.",
  content_filter: "The reply was filtered.",
  error: "The reply ended with an error.",
};

/** A message of the user, with a button that takes the conversation back to it. */
export function userMessage(text, onEdit) {
  const edit = element("button", { type: "button", class: "quiet", onclick: onEdit, title: "Go back to this message and write it anew" }, "Edit");
  return element("article", { class: "message user", "aria-label": "You" }, element("p", { class: "plain" }, text), edit);
}

export function toolResult(name, text) {
  return element("article", { class: "message tool", "aria-label": `Result of ${name}` }, element("h3", {}, `Result of ${name}`), element("pre", {}, text));
}

export function errorMessage(text, onRetry) {
  const retry = element("button", { type: "button", onclick: onRetry }, "Try again");
  return element("article", { class: "message error", role: "alert" }, element("p", {}, text), retry);
}

/** A reply of the model that grows. `schema` is that of its JSON, if it has one. */
export class ReplyView {
  #reasoning = element("div", { class: "reasoning-text" });
  #reasoningBox = element("details", { class: "reasoning", hidden: true }, element("summary", {}, "Reasoning"), this.#reasoning);
  #content = element("div", { class: "content" });
  #calls = element("div", { class: "calls" });
  #end = element("div", { class: "end" });
  #markdown = new GrowingMarkdown(this.#content);
  #schema = null;

  constructor(schema) {
    this.element = element("article", { class: "message reply", "aria-label": "The model", "aria-busy": "true" });
    this.element.append(this.#reasoningBox, this.#content, this.#calls, this.#end);
    if (schema) {
      this.#schema = new SchemaView(schema);
      this.#content.replaceWith(this.#schema.element);
    }
  }

  show(reply, isOver = false) {
    this.#reasoningBox.hidden = !reply.reasoning;
    this.#reasoning.textContent = reply.reasoning;
    if (this.#schema) {
      this.#schema.element.hidden = Boolean(reply.calls.length) && !reply.content;
      this.#schema.show(reply.content, isOver);
    } else this.#markdown.show(reply.content, isOver);
    this.#calls.replaceChildren(...reply.calls.filter(Boolean).map(callView));
  }

  /** Shows how the reply ended, and the cached part of its prompt. */
  finish(reply, request, note) {
    this.element.removeAttribute("aria-busy");
    this.show(reply, true);
    const text = note ?? ENDS[reply.finish];
    if (text) this.#end.append(element("p", { class: "note" }, text));
    for (const { path } of reply.unenforced) {
      this.#end.append(element("p", { class: "note" }, `The reply was not held to ${path} of the schema.`));
    }
    if (reply.usage) this.#end.append(promptView(reply.usage, reply.explanation, request));
  }

  /** Asks for the results of the reply's calls; `onResults` gets a text for each. */
  askForResults(calls, onResults) {
    const fields = calls.map((call) => element("textarea", { rows: 2, required: true, "aria-label": `Result of ${call.name}`, placeholder: `What ${call.name} returns` }));
    const form = element("form", { class: "results" }, ...fields, element("button", { type: "submit" }, "Send the results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onResults(fields.map((field) => field.value));
    });
    this.#end.prepend(form);
    fields[0].focus();
  }
}

function callView(call) {
  return element("div", { class: "call" }, element("h3", {}, `Calls ${call.name}`), element("pre", { tabindex: 0 }, readable(call.arguments)));
}

/** Complete JSON in several lines, other text as it is. */
function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
