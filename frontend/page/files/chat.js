// The chat: sends the branch that is shown, shows the replies as they arrive, and keeps them in the tree of messages.
import { ServerError, stream } from "./api.js";
import { asSent } from "./chat_file.js";
import { newChat, titleOf } from "./chat_store.js";
import { Composer } from "./composer.js";
import { byId, element } from "./dom.js";
import { readTree } from "./message_tree.js";
import { ReplyView, branchSwitch, errorMessage, toolResult, userMessage } from "./messages.js";
import { isUnloaded, modelCard } from "./models.js";
import { asMessage, emptyReply, extend, keptReply, speedOf } from "./reply.js";
import { keptSettings, readSettings, showSettings } from "./settings.js";
import { offerFollowUp, startScreen } from "./start_screen.js";
import { showWaiting } from "./waiting.js";

const NEAR_END = 80; // pixels: a list that is scrolled to its end follows the reply
const NO_SPEED = { first: null, rate: null };
const NO_FORM = { schema: "", tools: "", mustCall: false }; // neither a schema nor tools

export class Chat {
  #chat = newChat();
  #views = new Map(); // by the ids of messages: {element, askForResults, form}
  #running = null; // the request whose reply is being written, as `#request` makes it
  #editing = null; // the id of the message beside which the box's text begins a branch
  #composer;
  #hooks;

  /** `hooks`: `onChange` is called while and after a reply is written; `onUnauthorized` asks for a key and resolves to whether it got one;
   * `onSave` keeps a chat; `onPath` is called when the branch that is shown or the settings may have changed. */
  constructor(hooks) {
    this.#hooks = hooks;
    this.#composer = new Composer({ send: () => this.#send(), stop: () => this.#stop(), editLast: () => this.#editLast(), escape: () => this.#escape() });
    window.addEventListener("pagehide", () => this.#running && this.#keep(this.#running, "The page was closed before the reply ended."));
    this.draw();
  }

  get id() {
    return this.#chat.id;
  }

  /** Whether a reply is being written or is waiting for a key. */
  get isBusy() {
    return this.#running !== null;
  }

  /** Shows a chat that was kept, or a new one with the present settings but no schema and no tools. */
  open(kept) {
    if (this.#running) this.#chat.settings = keptSettings();
    this.#stop("The reply ended when you left this chat.");
    this.#setRunning(null);
    this.#chat = kept ? { ...kept, tree: readTree(kept.tree) } : newChat();
    showSettings(kept ? kept.settings : { ...keptSettings(), ...NO_FORM });
    this.#views.clear();
    this.#composer.put();
    this.#edit(null);
    byId("announcement").textContent = kept ? `Chat: ${kept.title}` : "A new chat.";
    this.#follow(true);
    this.#composer.focus();
  }

  /** Gives the chat a name of the user's. */
  rename(title) {
    Object.assign(this.#chat, { title, isNamed: true });
  }

  /** Shows what the server has said of the model. */
  showModel() {
    if (this.#chat.tree.isEmpty) this.draw();
  }

  /** Keeps the settings with the chat. */
  saveSettings() {
    if (this.#chat.tree.isEmpty) this.draw();
    else this.#save(this.#chat);
    this.#hooks.onPath();
  }

  #save(chat) {
    if (chat === this.#chat) chat.settings = keptSettings();
    if (!chat.isNamed) chat.title = titleOf(chat.tree);
    this.#hooks.onSave(chat);
  }

  #send() {
    const written = this.#composer.read();
    if (this.#running || !written) return;
    const { tree } = this.#chat;
    const before = { leaf: tree.leaf, editing: this.#editing, written };
    if (this.#editing !== null) tree.goTo(tree.get(this.#editing).parent);
    const { text, documents, followUp } = written;
    const node = tree.add(tree.leaf, { role: "user", content: text }, { ...(documents.length && { documents }), ...(followUp && { followUp }) });
    this.#composer.put();
    this.#edit(null);
    this.#reply({ parent: node.id, added: [node.id], before, rounds: 0 });
  }

  /** Ends the reply that is being written; `note` will stand below it. */
  #stop(note = "You stopped the reply.") {
    if (!this.#running) return;
    this.#running.note = note;
    this.#running.controller.abort();
  }

  #escape() {
    if (this.#editing !== null) {
      this.#composer.put();
      this.#edit(null);
    } else if (this.#running) this.#stop();
    else return false;
    return true;
  }

  #editLast() {
    const last = this.#chat.tree.path().findLast(({ message }) => message.role === "user");
    if (last && !this.#running) this.#startEdit(last);
    return Boolean(last);
  }

  #startEdit(node) {
    this.#stop();
    this.#composer.put({ text: node.message.content, documents: node.documents });
    this.#edit(node.id);
    this.#composer.focus(true);
  }

  #edit(id) {
    this.#editing = id;
    this.#composer.showEditing(id !== null);
    this.draw();
  }

  #regenerate(id) {
    if (this.#running) return;
    const { tree } = this.#chat;
    const before = { leaf: tree.leaf, editing: null, written: null };
    tree.goTo(tree.get(id).parent);
    this.#edit(null);
    this.#composer.focus();
    this.#reply({ parent: tree.leaf, added: [], before, rounds: 0, retry: () => this.#regenerate(id) });
  }

  /** Adds the results of a reply's calls and asks for the next reply, unless a reply is being written. */
  #addResults(id, calls, texts, rounds) {
    if (this.#running) return;
    const { tree } = this.#chat;
    const before = { leaf: tree.leaf, editing: null, written: null };
    tree.goTo(id);
    let parent = id;
    const added = calls.map((call, index) => {
      const message = { role: "tool", tool_call_id: call.id, content: texts[index] };
      parent = tree.add(parent, message, { name: call.name }).id;
      return parent;
    });
    this.#edit(null);
    this.#reply({ parent, added, before, rounds, retry: () => this.#views.get(id)?.form?.requestSubmit() });
  }

  /** Asks for the reply to message `parent`. If there is none, the `added` messages leave the tree, and all is as `before`. `rounds`:
   * how many times mock values have answered calls since the user did something. */
  async #reply({ parent, added, before, rounds, retry = null }) {
    const settings = readSettings();
    const run = { chat: this.#chat, parent, added, before, rounds, retry, settings, reply: emptyReply(performance.now()), controller: new AbortController(), isOver: false };
    if (settings.error) {
      byId(settings.place).showModal();
      this.#refuse(run, settings.error);
      return;
    }
    run.body = bodyOf(this.#chat.tree.path(parent), settings);
    run.view = new ReplyView(settings.schema);
    this.#setRunning(run);
    this.draw();
    byId("messages").append(run.view.element);
    this.#follow(true);
    let error = null;
    try {
      await this.#read(run);
    } catch (caught) {
      error = caught;
    }
    await this.#finish(run, error);
  }

  async #read({ body, controller, reply, view }) {
    let drawing = 0;
    const draw = () => {
      drawing = 0;
      if (reply.finish === null) view.show(reply);
      this.#follow();
    };
    const stopWaiting = showWaiting(view.waiting);
    const request = { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, explain_cache: true };
    try {
      for await (const chunk of stream("v1/chat/completions", request, controller.signal)) {
        extend(reply, chunk, performance.now());
        if (reply.first !== null) stopWaiting();
        drawing ||= requestAnimationFrame(draw);
        this.#hooks.onChange(false);
      }
    } finally {
      stopWaiting();
      cancelAnimationFrame(drawing);
    }
  }

  async #finish(run, error) {
    const { chat, reply, view } = run;
    if (run.isOver) {
      if (this.#running === run) this.#setRunning(null);
      return;
    }
    const isStopped = error?.name === "AbortError";
    if (error && !isStopped && !reply.content && !reply.calls.length) {
      view.element.remove();
      await this.#fail(run, error);
      return;
    }
    // The calls of a reply that did not end may be incomplete, and the server would refuse them.
    if (error) reply.calls = [];
    if (this.#running === run) this.#setRunning(null);
    const node = this.#keep(run, isStopped ? run.note : error?.message);
    if (chat !== this.#chat) return;
    this.#views.set(node.id, this.#finishView(view, node));
    this.draw();
    byId("announcement").textContent = reply.content || "The reply has ended.";
    this.#follow();
    this.#hooks.onChange(true);
    if (reply.calls.length && chat.tree.leaf === node.id) this.#answerCalls(run, node);
  }

  /** Adds the reply, whole or not, to the tree and keeps the chat. Returns its node. */
  #keep(run, note) {
    run.isOver = true;
    const { reply, settings, body } = run;
    const { usage, explanation, unenforced, finish } = reply;
    const details = { usage, explanation, unenforced, finish, note, speed: speedOf(reply), system: settings.system, tools: body.tools, schema: settings.schema, model: body.model };
    const node = run.chat.tree.add(run.parent, asMessage(reply), details);
    run.chat.updated = Date.now();
    this.#save(run.chat);
    return node;
  }

  /** Answers the calls by the tools' mock values, or asks the user for their results. */
  #answerCalls({ reply, settings, rounds }, node) {
    const texts = reply.calls.map((call) => settings.mocks[call.name]);
    if (texts.every((text) => text !== undefined) && rounds < settings.rounds) {
      this.#addResults(node.id, reply.calls, texts, rounds + 1);
      return;
    }
    const { form } = this.#views.get(node.id);
    if (rounds) form.prepend(element("p", { class: "note" }, `Mock values have answered ${rounds} rounds of calls. The next one is yours.`));
    form.querySelector("textarea").focus();
  }

  async #fail(run, error) {
    const needsKey = error instanceof ServerError && error.status === 401;
    const hasKey = needsKey && (await this.#hooks.onUnauthorized(error.message));
    if (this.#running === run) this.#setRunning(null);
    if (hasKey && run.chat === this.#chat) this.#reply(run);
    else this.#refuse(run, error.message);
  }

  /** Takes the added messages back: the user's text into the box, results into their form. */
  #refuse({ chat, added, before, retry }, reason) {
    for (const id of added.toReversed()) chat.tree.remove(id);
    chat.tree.goTo(before.leaf);
    if (chat !== this.#chat) return;
    for (const id of added) this.#views.delete(id);
    if (before.written) {
      const meanwhile = this.#composer.read();
      const text = [before.written.text, meanwhile?.text].filter(Boolean).join("\n");
      this.#composer.put({ ...before.written, text, documents: [...before.written.documents, ...(meanwhile?.documents ?? [])] });
    }
    this.#edit(before.editing);
    byId("messages").append(errorMessage(reason, retry ?? (() => byId("composer").requestSubmit())));
    if (before.written) this.#composer.focus();
    this.#follow(true);
  }

  /** The request for the next reply as far as it is known, and the place of each message among its siblings; null for an empty chat, undefined while
   * a reply is written. */
  readPath() {
    const path = this.#chat.tree.path();
    if (this.#running) return undefined;
    if (!path.length) return null;
    const { fields = {}, system = "" } = readSettings();
    const body = bodyOf(path, { fields: { model: byId("model").value, tools: fields.tools }, system });
    const branches = path.map(({ id }) => {
      const siblings = this.#chat.tree.siblings(id);
      return siblings.length > 1 ? { place: siblings.findIndex((each) => each.id === id), count: siblings.length } : null;
    });
    return { body, branches: system ? [null, ...branches] : branches };
  }

  /** Shows the branch, and nothing else: errors go. */
  draw() {
    this.#hooks.onPath();
    const path = this.#chat.tree.path();
    const shown = path.map((node) => this.#view(node));
    const edited = path.findIndex(({ id }) => id === this.#editing);
    path.forEach((node, index) => {
      const { element: made, form } = shown[index];
      if (form) form.hidden = this.#running !== null || (index < path.length - 1 && index !== edited - 1);
      made.classList.toggle("left-aside", edited >= 0 && index >= edited);
      this.#showBranches(node, made);
    });
    if (path.length) showOnly(byId("messages"), [...shown.map((view) => view.element), ...this.#offerNext(path)]);
    else byId("messages").replaceChildren(startScreen(modelCard(), isUnloaded(), (example) => this.#fillIn(example)));
  }

  /** A button for what comes next: the example's next message, or the reply to the last message, if it has none because the page was closed meanwhile. */
  #offerNext(path) {
    const { id, message } = path.at(-1);
    if (this.#running) return [];
    if (message.role === "assistant") return offerFollowUp(path, (text) => this.#fillBox({ text }));
    const ask = () => this.#reply({ parent: id, added: [], before: { leaf: id, editing: null, written: null }, rounds: 0, retry: ask });
    return [element("p", { class: "note" }, "This message has no reply. ", element("button", { type: "button", onclick: ask }, "Ask for one"))];
  }

  #showBranches({ id }, made) {
    const siblings = this.#chat.tree.siblings(id);
    made.querySelector(".branches")?.remove();
    const place = siblings.findIndex((each) => each.id === id);
    const branches = branchSwitch(place, siblings.length, (to) => this.#showBranch(siblings[to].id, to > place));
    if (branches) made.querySelector(".actions")?.prepend(branches);
  }

  #showBranch(id, isForward) {
    if (this.#running) return;
    this.#chat.tree.show(id);
    this.#edit(null);
    this.#save(this.#chat);
    const branches = this.#views.get(id).element.querySelector(".branches");
    const [back, forward] = branches.querySelectorAll("button");
    (isForward ? !forward.disabled : back.disabled) ? forward.focus() : back.focus();
    byId("announcement").textContent = branches.getAttribute("aria-label");
  }

  #view(node) {
    if (!this.#views.has(node.id)) this.#views.set(node.id, this.#makeView(node));
    return this.#views.get(node.id);
  }

  #makeView(node) {
    const { role, content } = node.message;
    if (role === "user") return { element: userMessage(content, node.documents ?? [], () => this.#startEdit(node)) };
    if (role === "tool") return { element: toolResult(node.name ?? "a call", content) };
    return this.#finishView(new ReplyView(node.schema), node);
  }

  #finishView(view, node) {
    const reply = keptReply(node);
    const path = this.#chat.tree.path(node.parent);
    const request = () => bodyOf(path, { fields: { model: node.model ?? byId("model").value, tools: node.tools }, system: node.system });
    view.finish(reply, node.speed ?? NO_SPEED, request, node.note, () => this.#regenerate(node.id));
    if (!reply.calls.length) return { element: view.element };
    const form = view.askForResults(reply.calls, readSettings().mocks ?? {}, (texts) => this.#addResults(node.id, reply.calls, texts, 0));
    return { element: view.element, form };
  }

  #fillIn({ message, documents, settings = {}, followUp }) {
    showSettings({ ...keptSettings(), ...NO_FORM, ...settings });
    this.#fillBox({ text: message, documents, followUp });
  }

  #fillBox(content) {
    this.#composer.put(content);
    this.#composer.focus();
  }

  #setRunning(running) {
    this.#running = running;
    this.#composer.showRunning(running !== null);
  }

  #follow(always = false) {
    const list = byId("messages");
    if (always || list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END) list.scrollTop = list.scrollHeight;
  }
}

/** Makes `wanted` the children of `list`. Those that it has already stay where they are, with the focus. */
function showOnly(list, wanted) {
  for (const child of [...list.children]) if (!wanted.includes(child)) child.remove();
  wanted.forEach((each, index) => list.children[index] !== each && list.insertBefore(each, list.children[index] ?? null));
}

/** The request for the reply to the last message of `path`. A tool must be called only in the first reply to a message of the user, and then once: a
 * model that was not trained to call would go on calling. */
function bodyOf(path, { fields, system, mustCall = false }) {
  const messages = path.map(asSent);
  const must = mustCall && fields.tools && messages.at(-1)?.role === "user" ? { tool_choice: "required", parallel_tool_calls: false } : {};
  if (system) messages.unshift({ role: "system", content: system });
  return { ...fields, ...must, messages };
}
