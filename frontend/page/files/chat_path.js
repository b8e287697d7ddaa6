// The path of the chat through the prefix tree: how much of each message is cached and shared, and the whole tree drawn small.
import { ServerError, getJson, postJson } from "./api.js";
import { count, drawn, element, plural } from "./dom.js";
import { boxes, evictedKind, heldTokens, kindOf, mainTier, mergeChains, namesOf, oneLine } from "./icicle.js";
import { cacheQuery, isUnloaded } from "./models.js";

const MIN_SECONDS = 2; // between two explanations
const MAX_WORDS = 80; // characters of a message
const ROW = 9; // pixels, a row of the small tree
const NARROW = 1.5; // pixels; boxes are not narrower
const CACHED_TITLE = "Cached: what the model has computed for these tokens is kept, and need not be computed again";
const SHARED_TITLE = "Shared by: other branches of the tree that have the chat up to here, of other chats or of this one";
const TEMPLATE_TITLE = "Text that the model's chat template adds, such as the list of tools: it belongs to no message";

export class ChatPath {
  #container;
  #read;
  #onOpen;
  #isChanged = true; // the chat differs from what the rows show
  #changes = 0;
  #asked = -Infinity; // when the last explanation was asked for, in milliseconds
  #tree = null;
  #shown = ""; // the last answer, so that an unchanged tree is not drawn again
  #path = []; // `nodes` of the last explanation
  #parts = []; // the rows that are shown, as `pathRows` makes them
  #explained = ""; // the chat that the rows show, so that it is not asked for again
  #refreshing = null; // the promise of the refresh that is under way
  #totals = element("p", { class: "path-totals" });
  #rows = element("ol", { class: "path", "aria-label": "Messages of this chat" });
  #map = element("div", { class: "minimap" });
  #open = element("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.#openAt(this.#deepest()) }, "Open in the tree");

  /** `read` returns `{body, branches}` of the chat, null if it is empty and undefined while a reply is written; `branches` has the `{place, count}` of
   * each message among its siblings, or null. `onOpen` gets the name of a node that is to be shown. */
  constructor(container, { read, onOpen }) {
    this.#container = container;
    this.#read = read;
    this.#onOpen = onOpen;
    const head = element("div", { class: "row" }, element("h2", {}, "Whole tree"), element("span", { class: "space" }), this.#open);
    container.append(this.#totals, this.#rows, head, this.#map);
    new ResizeObserver(() => this.#drawMap()).observe(this.#map);
  }

  /** Notes that the chat has changed, so that the next refresh asks for its explanation. */
  change() {
    this.#isChanged = true;
    this.#changes += 1;
    this.#markOld();
  }

  /** Marks what is shown while it is of an earlier turn and a newer one has been asked for. While a reply is written, there is none. */
  #markOld() {
    const chat = this.#isChanged ? this.#read() : undefined;
    this.#container.setAttribute("aria-busy", String(chat !== undefined && JSON.stringify(chat) !== this.#explained));
  }

  /** Refreshes at once, also if the last explanation was asked for just before: a reply has ended. */
  async refreshNow() {
    const before = this.#refreshing;
    await before?.catch(() => {}); // its caller gets the error
    this.#asked = -Infinity;
    if (!before) return this.refresh();
    await this.#explain(); // the tree has just been fetched
    this.#markOld();
  }

  refresh() {
    this.#refreshing ??= Promise.all([this.#explain(), this.#fetchTree()]).finally(() => {
      this.#refreshing = null;
      this.#markOld();
    });
    return this.#refreshing;
  }

  async #fetchTree() {
    if (isUnloaded()) return;
    const answer = await getJson(`cache/tree${cacheQuery()}`);
    const text = JSON.stringify(answer);
    if (text === this.#shown) return;
    this.#shown = text;
    this.#tree = answer;
    this.#draw();
  }

  async #explain() {
    if (!this.#isChanged) return;
    const chat = this.#read();
    const content = JSON.stringify(chat);
    if (chat === null) this.#showHint("Each message of the chat appears here, with the part of it that is in the cache.", content);
    if (content === this.#explained) this.#isChanged = false;
    if (!this.#isChanged) return;
    if (chat && isUnloaded()) {
      this.#showHint("The model is not loaded, so none of this chat is cached. The next message loads it.", content);
      return;
    }
    if (!chat || performance.now() - this.#asked < MIN_SECONDS * 1000) return;
    const changes = this.#changes;
    this.#asked = performance.now();
    try {
      const explanation = await postJson("cache/explain", chat.body);
      if (changes === this.#changes) this.#show(explanation, chat, content);
    } catch (error) {
      if (!(error instanceof ServerError) || error.status < 400 || error.status > 499 || error.status === 401) throw error;
      if (changes === this.#changes) this.#showHint(error.message, content);
    }
    this.#isChanged = changes !== this.#changes;
  }

  #showHint(text, content) {
    [this.#path, this.#parts, this.#explained] = [[], [], content];
    this.#totals.textContent = text;
    this.#draw();
  }

  #show(explanation, { body, branches }, content) {
    this.#explained = content;
    this.#path = explanation.nodes;
    this.#parts = pathRows(explanation.messages, body.messages, branches);
    this.#totals.textContent = totalsText(explanation);
    this.#draw();
  }

  #draw() {
    const kind = evictedKind(this.#tree && evictedTier(this.#tree.nodes, this.#path));
    this.#rows.replaceChildren(...this.#parts.map((part) => rowView(part, kind)));
    this.#drawMap();
  }

  #drawMap() {
    const width = this.#map.clientWidth;
    if (!this.#tree || !width) return;
    const tree = mergeChains(this.#tree);
    const names = namesOf(tree);
    const held = heldTokens(tree);
    const onPath = new Set(this.#path.map(({ id }) => id).filter((id) => id !== null));
    const laid = boxes(tree.nodes, tree.roots.map((root) => root.node)).filter((box) => box.width * width >= NARROW);
    let marked = 0;
    const shown = laid.map(({ node: index, depth, x, width: part, folded }) => {
      const node = tree.nodes[index];
      const isOnPath = !folded && node.ids.some((id) => onPath.has(id));
      marked += isOnPath;
      const place = { x: x * width, y: depth * ROW, width: Math.max(NARROW, part * width - 1), height: ROW - 1 };
      const group = drawn("g", { class: ["box", folded ? "folded" : kindOf(node, held), isOnPath ? "on-path" : ""].join(" ") }, drawn("rect", place));
      group.addEventListener("click", () => this.#openAt(names[index]));
      return group;
    });
    const rows = 1 + Math.max(0, ...laid.map((box) => box.depth));
    const label = `Prefix tree of ${plural(held, "token")}: ${count(marked)} of its ${count(laid.length)} boxes are on the path of this chat`;
    this.#open.hidden = !marked;
    if (laid.length) this.#map.replaceChildren(drawn("svg", { width, height: rows * ROW, role: "img", "aria-label": label, class: marked ? "has-path" : "" }, ...shown));
    else this.#map.replaceChildren(element("p", { class: "hint" }, "The tree is empty. It grows with the first prompt."));
  }

  /** The name of the last box on the chat's path. */
  #deepest() {
    const tree = mergeChains(this.#tree);
    const last = this.#path.findLast(({ id }) => id !== null)?.id;
    return namesOf(tree)[tree.nodes.findLastIndex(({ ids }) => ids.includes(last))];
  }

  #openAt(name) {
    if (name !== undefined) this.#onOpen(name);
  }
}

/** How much of the chat is cached, and what the next turn computes of it. */
export function totalsText({ prompt_tokens, matched_tokens }) {
  const rest = prompt_tokens - matched_tokens;
  return `${count(matched_tokens)} of ${plural(prompt_tokens, "token")} of this chat are in the cache; the next turn computes about ${count(rest)} and your message.`;
}

/** A row for each part of the prompt: `{role, words, tokens, cached, evicted, shared, branch, isReplyStart}`. `sent` are the messages of the request. */
export function pathRows(parts, sent, branches) {
  return parts.map(({ index, role, tokens, cached_tokens: cached, evicted_tokens: evicted, shared_by: shared }, place) => {
    const isReplyStart = index === null && place > 0 && place === parts.length - 1;
    const words = index !== null ? wordsOf(sent[index]) : isReplyStart ? "Beginning of the next reply" : "Text before the messages";
    return { role, words, tokens, cached, evicted, shared, branch: (index !== null && branches[index]) || null, isReplyStart };
  });
}

/** The numbers of a row in words. The beginning of the next reply is not missing in the cache: it is computed when the next message is sent. */
export function rowNumbers({ tokens, cached, evicted, shared, isReplyStart }) {
  const part = isReplyStart && !cached ? `${plural(tokens, "token")}, computed with your next message` : `${count(cached)} of ${plural(tokens, "token")} cached`;
  return [part, evicted && `${count(evicted)} evicted`, shared && `shared by ${count(shared)}`].filter(Boolean).join(" · ");
}

function wordsOf(message) {
  const calls = (message?.tool_calls ?? []).map((call) => `calls ${call.function.name}`);
  const text = [message?.content?.trim(), ...calls].filter(Boolean).join(" · ");
  return oneLine(text.slice(0, MAX_WORDS));
}

/** The tier of the evicted nodes that a path continues with; null if it is not known. `path` has their ids and lengths, `nodes` those of /cache/tree. */
export function evictedTier(nodes, path) {
  const last = path.findLastIndex(({ id }) => id !== null);
  const ghost = path[last + 1];
  if (!ghost) return null;
  const above = last < 0 ? null : nodes.findIndex(({ id }) => id === path[last].id);
  const isAbove = (parent) => (above === null ? parent !== null && nodes[parent].parent === null : parent === above);
  const found = nodes.filter((node) => isAbove(node.parent) && !node.pages && node.tokens === ghost.tokens);
  return found.length === 1 ? mainTier(found[0]) : null;
}

function rowView(row, kind) {
  const { role, words, tokens, cached, evicted, shared, branch } = row;
  const title = [CACHED_TITLE, shared && SHARED_TITLE].filter(Boolean).join("\n");
  const bar = drawn("svg", { class: "bar", width: "100%", height: 6, "aria-hidden": "true" }, drawn("rect", { width: "100%", height: 6, class: "rest" }));
  const add = (from, part, kinds) => part && bar.append(drawn("rect", { x: percent(from, tokens), width: percent(part, tokens), height: 6, class: kinds }));
  add(0, cached, "cached");
  add(cached, evicted, kind);
  const mark = branch && element("span", { class: "branch", title: "Other branches of this chat begin here" }, `‹ ${branch.place + 1}/${branch.count} ›`);
  return element(
    "li",
    { class: ["part", role, shared && "shared"].filter(Boolean).join(" ") },
    element("span", { class: "who", title: role === "template" ? TEMPLATE_TITLE : null }, role),
    mark,
    element("span", { class: "words" }, words),
    row.isReplyStart && !cached ? null : bar,
    element("span", { class: "numbers", title }, rowNumbers(row)),
  );
}

function percent(part, whole) {
  return `${(100 * part) / Math.max(1, whole)}%`;
}
