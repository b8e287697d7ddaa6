// The chat: sends the conversation and shows the replies as they arrive.
import { ServerError, stream } from "./api.js";
import { byId } from "./dom.js";
import { ReplyView, errorMessage, toolResult, userMessage } from "./messages.js";
import { asMessage, emptyReply, extend } from "./reply.js";
import { readSettings } from "./settings.js";

const NEAR_END = 80; // pixels: a list that is scrolled to its end follows the reply

export class Chat {
  #turns = []; // {message, element}
  #running = null; // the AbortController of the reply that is being written
  #onChange;
  #onUnauthorized;

  /** `onChange` is called while and after a reply is written; `onUnauthorized` asks for a key and resolves to whether it got one. */
  constructor(onChange, onUnauthorized) {
    this.#onChange = onChange;
    this.#onUnauthorized = onUnauthorized;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("message").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    byId("stop").addEventListener("click", () => this.#running?.abort());
    byId("new-chat").addEventListener("click", () => this.#goBack(0, ""));
  }

  #send() {
    const text = byId("message").value;
    if (this.#running || !text.trim()) return;
    this.#setAside();
    const place = this.#turns.length;
    this.#add({ role: "user", content: text }, userMessage(text, () => this.#goBack(place, text)));
    byId("message").value = "";
    this.#reply(place);
  }

  /** Takes away what would begin another reply: "Try again", and the results of calls that the user passes over. */
  #setAside() {
    for (const shown of byId("messages").querySelectorAll(".message.error")) shown.remove();
    for (const form of byId("messages").querySelectorAll("form.results")) form.hidden = true;
  }

  #add(message, element) {
    this.#turns.push({ message, element });
    byId("messages").append(element);
    this.#follow(true);
  }

  /** Drops the turns from number `place` on and offers `text` for a new one. */
  #goBack(place, text) {
    this.#running?.abort();
    this.#setRunning(null);
    this.#turns.length = Math.min(this.#turns.length, place);
    byId("messages").replaceChildren(...this.#turns.map((turn) => turn.element));
    const results = this.#turns.at(-1)?.element.querySelector("form.results");
    if (results) results.hidden = false;
    byId("message").value = text;
    byId("message").focus();
  }

  /** Asks for the reply to the turns from number `place` on, which leave the conversation if there is none. */
  async #reply(place) {
    const settings = readSettings();
    if (settings.error) {
      byId("settings-box").open = true;
      this.#refuse(place, settings.error);
      return;
    }
    const request = this.#request(settings);
    const view = new ReplyView(settings.schema);
    const running = new AbortController();
    const reply = emptyReply();
    this.#setRunning(running);
    byId("messages").append(view.element);
    let error = null;
    try {
      await this.#read(request, running, reply, view);
    } catch (caught) {
      error = caught;
    }
    if (this.#running === running) this.#setRunning(null);
    if (!view.element.isConnected) return; // the conversation went back before this reply
    this.#finish(reply, view, request, error, place);
  }

  #request({ fields, system }) {
    const messages = this.#turns.map((turn) => turn.message);
    if (system) messages.unshift({ role: "system", content: system });
    return { ...fields, messages, stream: true, stream_options: { include_usage: true }, explain_cache: true };
  }

  async #read(request, running, reply, view) {
    let drawing = 0;
    const draw = () => {
      drawing = 0;
      if (reply.finish === null) view.show(reply);
      this.#follow();
    };
    try {
      for await (const chunk of stream("v1/chat/completions", request, running.signal)) {
        extend(reply, chunk);
        drawing ||= requestAnimationFrame(draw);
        this.#onChange();
      }
    } finally {
      cancelAnimationFrame(drawing);
    }
  }

  #finish(reply, view, request, error, place) {
    const isStopped = error?.name === "AbortError";
    if (error && !isStopped && !reply.content && !reply.calls.length) {
      view.element.remove();
      this.#fail(error, place);
      return;
    }
    // The calls of a reply that did not end may be incomplete, and the server would refuse them.
    const calls = error ? [] : reply.calls;
    this.#turns.push({ message: asMessage({ ...reply, calls }), element: view.element });
    view.finish(reply, request, isStopped ? "You stopped the reply." : error?.message);
    if (calls.length) view.askForResults(calls, (texts) => this.#addResults(calls, texts));
    byId("announcement").textContent = reply.content || "The reply has ended.";
    this.#follow();
    this.#onChange(true);
  }

  async #fail(error, place) {
    const needsKey = error instanceof ServerError && error.status === 401;
    if (needsKey && (await this.#onUnauthorized(error.message))) this.#reply(place);
    else this.#refuse(place, error.message);
  }

  /** Takes the turns from number `place` on back: the user's text into the box, results into their form. */
  #refuse(place, reason) {
    const [refused] = this.#turns.splice(place);
    const isText = refused.message.role === "user"; // the results that it passed over are shown again too
    const texts = [isText ? refused.message.content : "", byId("message").value];
    this.#goBack(place, texts.filter(Boolean).join("\n"));
    const form = isText ? byId("composer") : byId("messages").querySelector("form.results:not([hidden])");
    byId("messages").append(errorMessage(reason, () => form.requestSubmit()));
    this.#follow(true);
  }

  /** Adds the results of calls and asks for the next reply, unless a reply is being written. */
  #addResults(calls, texts) {
    if (this.#running) return;
    this.#setAside();
    const place = this.#turns.length;
    calls.forEach((call, index) => {
      this.#add({ role: "tool", tool_call_id: call.id, content: texts[index] }, toolResult(call.name, texts[index]));
    });
    this.#reply(place);
  }

  #setRunning(running) {
    this.#running = running;
    byId("stop").hidden = running === null;
    byId("send").hidden = running !== null;
  }

  #follow(always = false) {
    const list = byId("messages");
    if (always || list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END) list.scrollTop = list.scrollHeight;
  }
}
