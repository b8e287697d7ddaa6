// The prefix tree as an icicle chart, with the details of the chosen node.
import { getJson } from "./api.js";
import { count, drawn, element, plural } from "./dom.js";
import { ancestry, boxes, childrenOf, distinctStarts, evictedKind, heat, heldTokens, kindOf, mainTier, mergeChains, namesOf, neighbour, oneLine, tiersInWords, users } from "./icicle.js";
import { cacheQuery, isUnloaded } from "./models.js";

const ROW = 26; // pixels
const LETTER = 6.9; // pixels, the width of a letter in a box
const NARROW = 2; // pixels; boxes are not narrower
const MIN_BESIDE_ROLE = 10; // letters beside the role in a box
const MAX_TEXTS = 8; // nodes of one box whose texts are fetched
const MAX_CRUMB = 28; // characters of a box's name above the chart
const HEATS = ["just used", "used lately", "used before", "not used for long"];
const NO_TREE = { nodes: [], roots: [] }; // of a model that is not loaded
const TIERS = { host: "in host memory", disk: "on disk", neither: "in neither" };

export class TreeView {
  #tree = null;
  #shown = ""; // the last answer, so that an unchanged tree is not drawn again
  #known = new Set(); // names of the nodes that were drawn before
  #zoom = null; // the name of the node that the chart begins with
  #chosen = null; // the name of the node with the details
  #salt;
  #crumbs = element("nav", { class: "crumbs", "aria-label": "Part of the tree that is shown" });
  #chart = element("div", { class: "chart" });
  #legend = element("ul", { class: "legend" });
  #details = element("div", { class: "details", "aria-live": "polite" });

  /** `salt` returns the `cache_salt` of the namespace whose texts are shown. */
  constructor(container, salt = () => "") {
    this.#salt = salt;
    container.append(this.#crumbs, this.#chart, this.#legend, this.#details);
    this.#chart.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#draw()).observe(this.#chart);
  }

  async refresh() {
    const answer = isUnloaded() ? NO_TREE : await getJson(`cache/tree${this.#query()}`);
    const text = JSON.stringify(answer);
    if (text === this.#shown) return;
    this.#shown = text;
    this.#tree = mergeChains(answer);
    this.#tree.names = namesOf(this.#tree);
    this.#tree.distinct = distinctStarts(this.#tree.nodes);
    this.#draw();
  }

  /** Begins the chart with the node `name`, or with the box above it if it has none below, and shows its numbers. */
  show(name) {
    this.#chosen = name;
    this.#zoom = name;
    this.#details.replaceChildren();
    this.#draw();
  }

  #query() {
    return cacheQuery({ cache_salt: this.#salt() });
  }

  #draw() {
    const width = this.#chart.clientWidth;
    if (!this.#tree || !width) return;
    const { nodes, roots } = this.#tree;
    this.#legend.replaceChildren(...legend(nodes.some((node) => node.stored)));
    if (!roots.length) {
      this.#chart.replaceChildren(element("p", { class: "hint" }, "The tree is empty. It grows with the first prompt."));
      this.#details.replaceChildren();
      this.#crumbs.replaceChildren();
      return;
    }
    const zoomed = this.#findZoomed();
    const top = zoomed !== null ? [zoomed] : roots.map((root) => root.node);
    this.#showCrumbs(zoomed);
    const laid = boxes(nodes, top).filter((box) => box.width * width >= NARROW);
    const rows = 1 + Math.max(...laid.map((box) => box.depth));
    const held = heldTokens(this.#tree);
    const hadFocus = this.#chart.contains(document.activeElement);
    const svg = drawn("svg", { width, height: rows * ROW, role: "tree", "aria-label": `Prefix tree of ${plural(held, "token")}` }, ...laid.map((box) => this.#box(box, width, held)));
    const note = this.#tree.is_complete ? "" : element("p", { class: "hint" }, "The tree is larger than one answer counts: the widths are of the part near the roots.");
    this.#chart.replaceChildren(svg, note);
    this.#known = new Set(this.#tree.names);
    const focus = svg.querySelector('[tabindex="0"]') ?? svg.querySelector("[role=treeitem]");
    focus?.setAttribute("tabindex", "0");
    if (hadFocus) focus?.focus({ preventScroll: true });
    const chosen = this.#tree.names.indexOf(this.#chosen);
    if (chosen >= 0) this.#describe(chosen);
  }

  #box({ node: index, depth, x, width, folded }, whole, held) {
    const node = this.#tree.nodes[index];
    const name = this.#tree.names[index];
    const place = { x: x * whole, y: depth * ROW, width: Math.max(NARROW, width * whole - 1), height: ROW - 1, rx: 2 };
    if (folded) return drawn("g", { class: "folded" }, drawn("rect", place), label(`${count(folded)} more`, place));
    const kind = kindOf(node, held);
    const marks = [node.pins && "pinned", node.leases && "leased"].filter(Boolean);
    const isNew = this.#known.size > 0 && !this.#known.has(name);
    const isChosen = name === this.#chosen;
    const group = drawn("g", {
      class: ["box", kind, ...marks, isNew && "new", isChosen && "chosen"].filter(Boolean).join(" "),
      role: "treeitem",
      tabindex: isChosen ? 0 : -1,
      "aria-level": depth + 1,
      "aria-selected": isChosen,
      "aria-label": this.#inWords(index, held),
      "data-index": index,
    });
    group.append(drawn("title", {}, this.#inWords(index, held)), drawn("rect", place));
    if (node.pins) group.append(drawn("rect", { ...place, class: "pin-mark", y: place.y + ROW - 5, height: 4, rx: 0 }));
    else if (node.leases) group.append(drawn("rect", { ...place, class: "lease-mark", y: place.y + ROW - 5, height: 4, rx: 0 }));
    group.append(label(this.#name(index), place, [...users(node), node.role].filter(Boolean).join(" · "), this.#tree.distinct[index]));
    group.addEventListener("click", () => this.#choose(index));
    return group;
  }

  #caption(index) {
    const node = this.#tree.nodes[index];
    return [...users(node), [node.role, this.#name(index)].filter(Boolean).join(": ")].join(" · ");
  }

  /** The first words of the node, without the role. */
  #name(index) {
    const node = this.#tree.nodes[index];
    if (node.parent === null) return this.#rootName(index);
    return node.label === null ? plural(node.tokens, "token") : oneLine(node.label);
  }

  #rootName(index) {
    const root = this.#tree.roots.find((each) => each.node === index);
    return root.own ? "This namespace" : `Namespace ${root.namespace}`;
  }

  #inWords(index, held) {
    const node = this.#tree.nodes[index];
    const tokens = `${plural(node.tokens, "token")}, ${count(node.tokens_below)} below`;
    if (node.parent === null) return `${this.#caption(index)}: ${count(node.tokens_below)} tokens`;
    const tier = mainTier(node);
    const state = node.pages ? HEATS[heat(node, held)] : tier ? `evicted, mostly ${TIERS[tier]}` : "evicted";
    const marks = [
      node.pins && plural(node.pins, "pin"),
      node.leases && plural(node.leases, "lease"),
    ].filter(Boolean);
    return `${this.#caption(index)}: ${tokens}, ${plural(node.hits, "hit")}, ${[state, ...marks].join(", ")}`;
  }

  #move(event) {
    const from = Number(event.target.dataset?.index ?? NaN);
    if (Number.isNaN(from)) return;
    if (event.key === "Escape") {
      const zoomed = this.#findZoomed();
      this.#zoomTo(zoomed === null ? null : this.#tree.names[this.#tree.nodes[zoomed].parent] ?? null);
      return;
    }
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#choose(from);
      return;
    }
    const to = neighbour(this.#tree.nodes, from, event.key);
    const target = to === null ? null : this.#chart.querySelector(`[data-index="${to}"]`);
    if (event.key.startsWith("Arrow")) event.preventDefault();
    if (!target) return;
    event.target.setAttribute("tabindex", "-1");
    target.setAttribute("tabindex", "0");
    target.focus();
  }

  #choose(index) {
    const isLeaf = !childrenOf(this.#tree.nodes)[index].length && !this.#tree.nodes[index].folded;
    this.#chosen = this.#tree.names[index];
    if (!isLeaf) this.#zoom = this.#chosen;
    this.#details.replaceChildren();
    this.#draw();
  }

  /** The node that the chart begins with; null for the roots. A leaf is shown below its parent. */
  #findZoomed() {
    const { nodes, names } = this.#tree;
    const found = names.indexOf(this.#zoom);
    if (found < 0) return null;
    const top = childrenOf(nodes)[found].length || nodes[found].folded ? found : nodes[found].parent;
    return nodes[top]?.parent === null && this.#tree.roots.length === 1 ? null : top;
  }

  /** The way from the whole tree to the node that the chart begins with. */
  #showCrumbs(zoomed) {
    const { nodes, names, roots } = this.#tree;
    const way = zoomed === null ? [] : ancestry(nodes, zoomed).filter((index) => roots.length > 1 || nodes[index].parent !== null);
    const places = [[null, "Whole tree"], ...way.map((index) => [names[index], shorten(this.#caption(index), MAX_CRUMB)])];
    if (JSON.stringify(places) === this.#crumbs.dataset.shown) return; // so that a button keeps the focus
    this.#crumbs.dataset.shown = JSON.stringify(places);
    const crumbs = places.map(([name, text], number) =>
      number === places.length - 1
        ? element("span", { "aria-current": "true" }, text)
        : element("button", { type: "button", class: "quiet", onclick: () => this.#zoomTo(name, true) }, text),
    );
    this.#crumbs.replaceChildren(...crumbs);
  }

  /** Shows the numbers of a node. Its text is fetched once. */
  #describe(index) {
    const node = this.#tree.nodes[index];
    const rows = [
      ["Tokens", `${count(node.tokens)} in ${plural(node.pages, "page")}; ${count(node.tokens_below)} below in ${childrenOf(this.#tree.nodes)[index].length + (node.folded ? 1 : 0)} branches`],
      ...(node.stored ? [["Evicted pages", tiersInWords(node.stored)]] : []),
      ...(node.ids.length > 1 ? [["Nodes", `${count(node.ids.length)} in a row; tokens and pages are sums, the rest is the first one's`]] : []),
      ["Hits", `${count(node.hits)}, the last one ${node.idle ? `${count(node.idle)} tokens ago` : "now"}`],
      ["Requests", `${count(node.requests)} running, ${count(node.waiting)} waiting`],
      ["Kept by", `${plural(node.pins, "pin")}, ${plural(node.leases, "lease")}`],
    ];
    const numbers = element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
    const text = this.#details.querySelector(".node-text") ?? element("pre", { class: "node-text", tabindex: 0, "aria-label": "Text of the node" });
    this.#details.replaceChildren(numbers, text);
    if (!text.textContent) this.#showText(node, text);
  }

  #zoomTo(name, takesFocus = false) {
    this.#zoom = name;
    this.#draw();
    if (takesFocus) this.#chart.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  async #showText(node, place) {
    if (node.parent === null) place.textContent = "The beginning of all prompts of this namespace.";
    else if (node.id === null) place.textContent = `${node.text ?? ""} … (evicted: only the beginning of its text is shown)`;
    else if (node.text === null) place.textContent = "Only its own clients can read this text.";
    else {
      place.textContent = node.text;
      const ids = node.ids.slice(0, MAX_TEXTS);
      const texts = await Promise.all(ids.map((id) => getJson(`cache/tree/${id}${this.#query()}`))).catch(() => [node]);
      place.textContent = texts.map(({ text }) => text).join("") + (node.ids.length > MAX_TEXTS ? " …" : "");
    }
  }
}

/** The text in a box, after the `role` if that leaves some letters. A text that does not fit begins at `distinct`, where it differs from its siblings'. */
function label(text, { x, y, width }, role = "", distinct = 0) {
  const most = Math.floor((width - 8) / LETTER);
  const left = role && most >= role.length + MIN_BESIDE_ROLE ? most - role.length - 1 : 0;
  const shown = most < 3 ? "" : fit(text, left || most, distinct);
  return drawn("text", { x: x + 5, y: y + ROW / 2 + 4 }, ...(left ? [drawn("tspan", { class: "role" }, role), ` ${shown}`] : [shown]));
}

function fit(text, most, distinct) {
  return shorten(distinct > 1 && text.length > most ? `…${text.slice(distinct)}` : text, most);
}

function shorten(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** The entries of the legend; those of evicted nodes are by tier if the tiers are known. */
function legend(hasTiers) {
  const tiers = Object.entries(TIERS).map(([tier, text]) => [evictedKind(tier), `evicted, ${text}`]);
  const entries = [...HEATS.map((text, index) => [`heat-${index}`, text]), ["pin-mark", "pinned"], ["lease-mark", "leased"], ...(hasTiers ? tiers : [["evicted", "evicted"]])];
  return entries.map(([kind, text]) => element("li", {}, element("span", { class: `key ${kind}` }), text));
}
