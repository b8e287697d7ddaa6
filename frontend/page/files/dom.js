// Elements of the page. Texts become text nodes, never HTML.

const NOTICE_SECONDS = 10;
let noticeEnd = 0; // the timer that hides the notice

/** An element with attributes (`onclick` and the like are listeners) and children (elements or texts). */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** An element of SVG. */
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** A drawing of index.html by the name after `icon-`. */
export function icon(name) {
  return drawn("svg", { class: "icon", "aria-hidden": "true", viewBox: "0 0 24 24" }, drawn("use", { href: `#icon-${name}` }));
}

/** A button with a drawing; `label` is its name and its tooltip. */
export function iconButton(name, label, onclick, attributes = {}) {
  return element("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
}

/** A button that copies what `read` returns and says so for a moment. */
export function copyButton(read, label) {
  const button = iconButton("copy", label, async () => {
    const isCopied = await copyText(read());
    button.replaceChildren(icon(isCopied ? "done" : "close"));
    button.title = isCopied ? "Copied" : "The browser did not let the page copy it";
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.title = label;
    }, 1500);
  });
  return button;
}

/** Copies a text, also on a page without HTTPS, where `navigator.clipboard` is missing. Resolves to whether it did. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", { class: "only-read" });
    field.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    return isCopied;
  }
}

export function byId(id) {
  return document.getElementById(id);
}

/** A whole number with separators, such as 12,345. */
export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

/** A number with at most one digit after the point. */
export function decimal(number) {
  return number.toLocaleString("en-US", { maximumFractionDigits: Math.abs(number) < 10 ? 1 : 0 });
}

/** "1 token", "2 tokens". */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** What drafts gain, such as "2.4 tokens a step, 78 % of drafts accepted"; empty for null. */
export function draftsText(drafts) {
  return drafts ? `${decimal(drafts.tokens)} tokens a step, ${Math.round(100 * drafts.share)} % of drafts accepted` : "";
}

/** A size in bytes, such as "1.5 MiB". */
export function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

/** Shows `text` for some seconds above the foot of the page; `action` is the `{label, run}` of a button, such as one that undoes what has happened. */
export function showNotice(text, action = null) {
  clearTimeout(noticeEnd);
  const run = () => {
    hideNotice();
    action.run();
  };
  const button = action && element("button", { type: "button", onclick: run }, action.label);
  byId("notice").replaceChildren(element("span", {}, text), button ?? "", iconButton("close", "Close this notice", hideNotice));
  byId("notice").classList.add("shown");
  noticeEnd = setTimeout(hideNotice, NOTICE_SECONDS * 1000);
}

function hideNotice() {
  byId("notice").classList.remove("shown");
  byId("notice").replaceChildren();
}
