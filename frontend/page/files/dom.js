// Elements of the page. Texts become text nodes, never HTML.

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

/** A size in bytes, such as "1.5 MiB". */
export function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}
