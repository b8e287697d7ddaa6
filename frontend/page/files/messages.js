// The messages of a conversation as elements.
import { copyButton, draftsText, element, iconButton } from "./dom.js";
import { GrowingMarkdown } from "./markdown.js";
import { promptView, speedText } from "./prompt_view.js";
import { draftsOf } from "./reply.js";
import { SchemaView } from "./schema_view.js";

const ENDS = {
  length: "The reply reached the limit of its length.",
  content_filter: "The reply was filtered.",
  error: "The reply ended with an error.",
};

/** A message of the user with its documents. `onEdit` begins a branch beside it. */
export function userMessage(text, documents, onEdit) {
  const chips = documents.map(({ name, text: whole }) => documentView(name, whole));
  const actions = element("div", { class: "actions" }, copyButton(() => text, "Copy the message"), iconButton("edit", "Edit", onEdit));
  return element("article", { class: "message user", "aria-label": "You" }, ...chips, text ? element("p", { class: "plain" }, text) : null, actions);
}

function documentView(name, text) {
  return element("details", { class: "document" }, element("summary", {}, name), element("pre", { tabindex: 0, "aria-label": `Text of ${name}` }, text));
}

export function toolResult(name, text) {
  return element("article", { class: "message tool", "aria-label": `Result of ${name}` }, element("h3", {}, `Result of ${name}`), element("pre", {}, text));
}

export function errorMessage(text, onRetry) {
  const retry = element("button", { type: "button", onclick: onRetry }, "Try again");
  return element("article", { class: "message error", role: "alert" }, element("p", {}, text), retry);
}

/** Arrows between the branches at a message, `place` (from 0) of `count`; nothing for a single one. */
export function branchSwitch(place, count, onMove) {
  if (count < 2) return null;
  const move = (name, label, to) => iconButton(name, label, () => onMove(to), { disabled: to < 0 || to >= count });
  return element(
    "span",
    { class: "branches", role: "group", "aria-label": `Branch ${place + 1} of ${count}` },
    move("left", "Previous branch", place - 1),
    element("span", { "aria-hidden": "true" }, `${place + 1}/${count}`),
    move("right", "Next branch", place + 1),
  );
}

/** A reply of the model that grows. `schema` is that of its JSON, if it has one. */
export class ReplyView {
  #reasoning = element("div", { class: "reasoning-text" });
  #reasoningBox = element("details", { class: "reasoning", hidden: true }, element("summary", {}, "Reasoning"), this.#reasoning);
  #content = element("div", { class: "content" });
  #calls = element("div", { class: "calls" });
  #drafts = element("p", { class: "gain" }); // what drafts gain while the reply is written
  #end = element("div", { class: "end" });
  #actions = element("div", { class: "actions" });
  #foot = element("div", { class: "foot", hidden: true }, this.#actions);
  #markdown = new GrowingMarkdown(this.#content);
  #schema = null;

  constructor(schema) {
    this.element = element("article", { class: "message reply", "aria-label": "The model", "aria-busy": "true" });
    this.waiting = element("p", { class: "waiting" }); // what is said before the first token
    this.element.append(this.#reasoningBox, this.#content, this.waiting, this.#calls, this.#drafts, this.#end, this.#foot);
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
    this.#drafts.textContent = isOver ? "" : draftsText(draftsOf(reply.usage));
  }

  /** Shows how the reply ended, how fast it was, and the cached part of its prompt. `request` returns the request. */
  finish(reply, speed, request, note, onRegenerate) {
    this.element.removeAttribute("aria-busy");
    this.show(reply, true);
    const text = note ?? ENDS[reply.finish];
    if (text) this.#end.append(element("p", { class: "note" }, text));
    for (const { path } of reply.unenforced) {
      this.#end.append(element("p", { class: "note" }, `The reply was not held to ${path} of the schema.`));
    }
    if (reply.usage) this.#foot.append(promptView(reply.usage, speed, reply.explanation, request));
    else if (speed.first !== null) this.#foot.append(element("p", { class: "prompt" }, speedText(speed)));
    this.#actions.append(copyButton(() => reply.content, "Copy the reply"), iconButton("again", "Regenerate", onRegenerate));
    this.#foot.hidden = false;
  }

  /** A form for the results of the reply's calls; `onResults` gets a text for each. `mocks` are results by the tools' names. */
  askForResults(calls, mocks, onResults) {
    const fields = calls.map((call) => {
      const field = element("textarea", { rows: 2, required: true, "aria-label": `Result of ${call.name}`, placeholder: `What ${call.name} returns` });
      field.value = mocks[call.name] ?? "";
      return field;
    });
    const form = element("form", { class: "results" }, ...fields, element("button", { type: "submit" }, "Send the results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onResults(fields.map((field) => field.value));
    });
    this.#end.prepend(form);
    return form;
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
