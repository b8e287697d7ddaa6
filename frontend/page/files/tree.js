// The prefix tree as an icicle chart, with the details of the chosen node.
import { getJson } from "./api.js";
import { count, drawn, element, plural } from "./dom.js";
import { boxes, branchTokens, childrenOf, heat, mainTier, neighbour, oneLine, tiersInWords, users } from "./icicle.js";

const ROW = 26; // pixels
const LETTER = 6.9; // pixels, the width of a letter in a box
const NARROW = 2; // pixels; boxes are not narrower
const HEATS = ["just used", "used lately", "used before", "not used for long"];
const TIERS = { host: "in host memory", disk: "on disk", neither: "in neither" };

export class TreeView {
  #tree = null;
  #shown = ""; // the last answer, so that an unchanged tree is not drawn again
  #known = new Set(); // names of the nodes that were drawn before
  #zoom = null; // the name of the node that the chart begins with
  #chosen = null; // the name of the node with the details
  #salt;
  #chart = element("div", { class: "chart" });
  #legend = element("ul", { class: "legend" });
  #details = element("div", { class: "details", "aria-live": "polite" });

  /** `salt` returns the `cache_salt` of the namespace whose texts are shown. */
  constructor(container, salt = () => "") {
    this.#salt = salt;
    container.append(this.#chart, this.#legend, this.#details);
    this.#chart.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#draw()).observe(this.#chart);
  }

  async refresh() {
    const tree = await getJson(`cache/tree${this.#query()}`);
    const text = JSON.stringify(tree);
    if (text === this.#shown) return;
    this.#shown = text;
    tree.names = names(tree);
    this.#tree = tree;
    this.#draw();
  }

  #query() {
    return this.#salt() ? `?cache_salt=${encodeURIComponent(this.#salt())}` : "";
  }

  #draw() {
    const width = this.#chart.clientWidth;
    if (!this.#tree || !width) return;
    const { nodes, roots } = this.#tree;
    this.#legend.replaceChildren(...legend(nodes.some((node) => node.stored)));
    if (!roots.length) {
      this.#chart.replaceChildren(element("p", { class: "hint" }, "The tree is empty. It grows with the first prompt."));
      this.#details.replaceChildren();
      return;
    }
    const zoomed = this.#tree.names.indexOf(this.#zoom);
    const top = zoomed >= 0 ? [zoomed] : roots.map((root) => root.node);
    const laid = boxes(nodes, top).filter((box) => box.width * width >= NARROW);
    const rows = 1 + Math.max(...laid.map((box) => box.depth));
    const held = roots.reduce((sum, root) => sum + branchTokens(nodes[root.node]), 0);
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
    const kind = node.parent === null ? "root" : node.pages === 0 ? evicted(mainTier(node)) : `heat-${heat(node, held)}`;
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
    group.append(label(this.#caption(index), place));
    group.addEventListener("click", () => this.#choose(index));
    return group;
  }

  #caption(index) {
    const node = this.#tree.nodes[index];
    return [...users(node), this.#name(index)].join(" · ");
  }

  #name(index) {
    const node = this.#tree.nodes[index];
    if (node.parent === null) return this.#rootName(index);
    return node.text === null ? plural(node.tokens, "token") : oneLine(node.text);
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
    this.#chosen = this.#tree.names[index];
    this.#details.replaceChildren();
    this.#draw();
  }

  /** Shows the numbers of a node. Its text is fetched once. */
  #describe(index) {
    const node = this.#tree.nodes[index];
    const rows = [
      ["Tokens", `${count(node.tokens)} in ${plural(node.pages, "page")}; ${count(node.tokens_below)} below in ${childrenOf(this.#tree.nodes)[index].length + (node.folded ? 1 : 0)} branches`],
      ...(node.stored ? [["Evicted pages", tiersInWords(node.stored)]] : []),
      ["Hits", `${count(node.hits)}, the last one ${node.idle ? `${count(node.idle)} tokens ago` : "now"}`],
      ["Requests", `${count(node.requests)} running, ${count(node.waiting)} waiting`],
      ["Kept by", `${plural(node.pins, "pin")}, ${plural(node.leases, "lease")}`],
    ];
    const numbers = element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
    const zoomTo = this.#zoom === this.#chosen ? null : this.#chosen;
    const zoom = element("button", { type: "button", onclick: () => this.#zoomTo(zoomTo) }, zoomTo === null ? "Show the whole tree" : "Zoom in");
    const all = this.#zoom !== null && zoomTo !== null ? element("button", { type: "button", onclick: () => this.#zoomTo(null) }, "Show the whole tree") : null;
    const text = this.#details.querySelector(".node-text") ?? element("pre", { class: "node-text", tabindex: 0, "aria-label": "Text of the node" });
    this.#details.replaceChildren(numbers, zoom, all ?? "", text);
    if (!text.textContent) this.#showText(node, text);
  }

  #zoomTo(name) {
    this.#zoom = name;
    this.#draw();
  }

  async #showText(node, place) {
    if (node.parent === null) place.textContent = "The beginning of all prompts of this namespace.";
    else if (node.id === null) place.textContent = `${node.text ?? ""} … (evicted: only the beginning of its text is shown)`;
    else if (node.text === null) place.textContent = "Only its own clients can read this text.";
    else {
      place.textContent = node.text;
      const { text } = await getJson(`cache/tree/${node.id}${this.#query()}`).catch(() => ({ text: node.text }));
      place.textContent = text;
    }
  }
}

/** A name for each node that lasts while it is in the tree. */
function names({ nodes, roots }) {
  const namespaces = new Map(roots.map((root) => [root.node, root.namespace]));
  const found = [];
  nodes.forEach((node, index) => {
    const inner = node.parent === null ? `root ${namespaces.get(index)}` : `${found[node.parent]} / ${node.text ?? index}`;
    found.push(node.id === null ? inner : `page ${node.id}`);
  });
  return found;
}

function label(text, { x, y, width }) {
  const most = Math.floor((width - 8) / LETTER);
  const shown = most < 3 ? "" : text.length > most ? `${text.slice(0, most - 1)}…` : text;
  return drawn("text", { x: x + 5, y: y + ROW / 2 + 4 }, shown);
}

/** The classes of an evicted node, or of its entry in the legend. */
function evicted(tier) {
  return tier ? `evicted in-${tier}` : "evicted";
}

/** The entries of the legend; those of evicted nodes are by tier if the tiers are known. */
function legend(hasTiers) {
  const tiers = Object.entries(TIERS).map(([tier, text]) => [evicted(tier), `evicted, ${text}`]);
  const entries = [...HEATS.map((text, index) => [`heat-${index}`, text]), ["pin-mark", "pinned"], ["lease-mark", "leased"], ...(hasTiers ? tiers : [["evicted", "evicted"]])];
  return entries.map(([kind, text]) => element("li", {}, element("span", { class: `key ${kind}` }), text));
}
