// Markdown as elements: marked reads it, and only the elements below are made. HTML in it stays text.
import { element } from "./dom.js";
import { lexer } from "./vendor/marked.js";

const SAFE_LINK = /^(https?:|mailto:)/i;

/** Shows a text that grows: only the blocks that have changed are made again. */
export class GrowingMarkdown {
  #shown = []; // the source of each block

  constructor(container) {
    this.container = container;
  }

  show(text) {
    const blocks = lexer(text, { gfm: true, breaks: true });
    const same = blocks.findIndex((block, index) => block.raw !== this.#shown[index]);
    const first = same < 0 ? Math.min(blocks.length, this.#shown.length) : same;
    while (this.container.childNodes.length > first) this.container.lastChild.remove();
    this.container.append(...blocks.slice(first).map(block));
    this.#shown = blocks.map((each) => each.raw);
  }
}

/** One node for each block, so that blocks and nodes have the same numbers. */
function block(token) {
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
      return element("blockquote", {}, ...token.tokens.map(block));
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "hr":
      return element("hr");
    case "space":
    case "def":
      return document.createTextNode("");
    default:
      return element("p", {}, token.raw);
  }
}

function code(token) {
  const copy = element("button", { type: "button", class: "copy", onclick: () => navigator.clipboard?.writeText(token.text) }, "Copy");
  const language = token.lang ? element("span", { class: "language" }, token.lang) : null;
  return element("div", { class: "code" }, language, copy, element("pre", { tabindex: 0 }, element("code", {}, token.text)));
}

function list(token) {
  const items = token.items.map((item) => {
    const box = item.task ? element("input", { type: "checkbox", disabled: true, checked: item.checked }) : null;
    return element("li", {}, box, ...item.tokens.filter((each) => each.type !== "checkbox").map(block));
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
