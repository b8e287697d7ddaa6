// Markdown as elements: marked reads it, and only the elements below are made. HTML in it stays text.
import { copyText, element } from "./dom.js";
import { lexer } from "./vendor/marked.js";

const SAFE_LINK = /^(https?:|mailto:)/i;
const LONG_BLANKS = /[ \t]{2000}/; // the lexer's time grows with the square of such a run
const SLOW = 250; // milliseconds of one reading, after which the rest is shown as it is
const PAUSE = 3; // between two readings, in times of the first
const UNSETTLED = 2; // blocks at the end that more text may change
const MOST_NESTED = 32; // blocks inside each other

/** Shows a text that grows: only the blocks at its end are read again. A text that the lexer can't read, or not
 * in time, is shown as it is. */
export class GrowingMarkdown {
  #shown = []; // the source of each block
  #settled = 0; // blocks
  #settledLength = 0; // their characters
  #isPlain = false; // the rest is shown as it is
  #nextReading = 0;

  constructor(container) {
    this.container = container;
  }

  /** `isWhole`: no more text follows, so that links whose definitions came last are known. */
  show(text, isWhole = false) {
    const start = performance.now();
    if (start < this.#nextReading && !isWhole) return;
    if (isWhole && !this.#isPlain) this.#settled = this.#settledLength = 0;
    const rest = text.replace(/\r\n?/g, "\n").slice(this.#settledLength);
    const blocks = this.#read(rest);
    this.#draw(blocks, isWhole && blocks.some((each) => each.type === "def"));
    if (!this.#isPlain) this.#settle(blocks, rest);
    const taken = performance.now() - start;
    this.#isPlain ||= taken > SLOW;
    this.#nextReading = start + (1 + PAUSE) * taken;
  }

  #read(rest) {
    if (!this.#isPlain && !LONG_BLANKS.test(rest)) {
      try {
        return lexer(rest, { gfm: true, breaks: true });
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
      }
    }
    this.#isPlain = true;
    return [{ type: "verbatim", raw: rest }];
  }

  #draw(blocks, isNew) {
    let first = 0;
    while (!isNew && first < blocks.length && blocks[first].raw === this.#shown[this.#settled + first]) first++;
    this.#shown.length = Math.min(this.#shown.length, this.#settled + first);
    while (this.container.childNodes.length > this.#shown.length) this.container.lastChild.remove();
    for (const each of blocks.slice(first)) {
      this.container.append(block(each, 0));
      this.#shown.push(each.raw);
    }
  }

  #settle(blocks, rest) {
    const places = blocks.flatMap((each, index) => (each.type === "space" ? [] : [index]));
    const settled = blocks.slice(0, places.at(-UNSETTLED) ?? 0).map((each) => each.raw).join("");
    if (!rest.startsWith(settled)) return;
    this.#settled += places.at(-UNSETTLED) ?? 0;
    this.#settledLength += settled.length;
  }
}

/** One node for each block, so that blocks and nodes have the same numbers. `depth`: blocks around it. */
function block(token, depth) {
  if (depth > MOST_NESTED) return verbatim(token.raw);
  const inside = (each) => block(each, depth + 1);
  switch (token.type) {
    case "heading":
      return element(`h${Math.min(6, token.depth + 2)}`, {}, ...inline(token.tokens));
    case "paragraph":
      return element("p", {}, ...inline(token.tokens));
    case "text":
      return element("span", {}, ...inline(token.tokens ?? [token]));
    case "code":
      return code(token);
    case "blockquote":
      return element("blockquote", {}, ...token.tokens.map(inside));
    case "list":
      return list(token, inside);
    case "table":
      return table(token);
    case "hr":
      return element("hr");
    case "space":
    case "def":
      return document.createTextNode("");
    case "verbatim":
      return verbatim(token.raw);
    default:
      return element("p", {}, token.raw);
  }
}

function verbatim(text) {
  return element("div", { class: "verbatim" }, text);
}

function code(token) {
  const copy = element("button", { type: "button", class: "copy", onclick: () => copyText(token.text) }, "Copy");
  const language = token.lang ? element("span", { class: "language" }, token.lang) : null;
  return element("div", { class: "code" }, language, copy, element("pre", { tabindex: 0 }, element("code", {}, token.text)));
}

function list(token, inside) {
  const items = token.items.map((item) => {
    const box = item.task ? element("input", { type: "checkbox", disabled: true, checked: item.checked }) : null;
    return element("li", {}, box, ...item.tokens.filter((each) => each.type !== "checkbox").map(inside));
  });
  return token.ordered ? element("ol", { start: token.start || 1 }, ...items) : element("ul", {}, ...items);
}

function table(token) {
  const row = (cells, tag) => element("tr", {}, ...cells.map((cell) => element(tag, {}, ...inline(cell.tokens))));
  const body = token.rows.map((cells) => row(cells, "td"));
  return element("div", { class: "wide" }, element("table", {}, element("thead", {}, row(token.header, "th")), element("tbody", {}, ...body)));
}

function inline(tokens) {
  return tokens.map((token) => {
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        return element(token.type, {}, ...inline(token.tokens));
      case "codespan":
        return element("code", {}, token.text);
      case "br":
        return element("br");
      case "link":
        return link(token);
      case "image":
        return document.createTextNode(token.raw); // an image would send a request elsewhere
      case "escape":
        return document.createTextNode(token.text);
      case "text":
        return token.tokens ? element("span", {}, ...inline(token.tokens)) : document.createTextNode(token.text);
      default:
        return document.createTextNode(token.raw);
    }
  });
}

function link(token) {
  const inside = inline(token.tokens);
  if (!SAFE_LINK.test(token.href)) return element("span", {}, ...inside);
  return element("a", { href: token.href, rel: "noopener noreferrer", target: "_blank" }, ...inside);
}
