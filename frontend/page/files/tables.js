// Tables of numbers, and buttons of which one is chosen.
import { element } from "./dom.js";

/** A table that scrolls by itself where it is too wide, also with the keyboard. `rows` are lists of texts or elements. */
export function table(caption, head, rows) {
  const cells = (values, tag, more = {}) => values.map((value) => element(tag, more, value));
  const body = rows.length ? rows.map((row) => element("tr", {}, ...cells(row, "td"))) : [element("tr", {}, element("td", { colspan: head.length }, "none"))];
  return element(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    element(
      "table",
      {},
      element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...cells(head, "th", { scope: "col" }))),
      element("tbody", {}, ...body),
    ),
  );
}

/** Buttons in `container` for the `options`, each `{value, label}`. The one of `chosen` is pressed. */
export function choiceButtons(container, options, chosen, onChoose) {
  const buttons = options.map(({ value, label }) => element("button", { type: "button", class: "choice", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, label));
  const choose = (value) => {
    options.forEach((option, index) => buttons[index].setAttribute("aria-pressed", String(option.value === value)));
    onChoose(value);
  };
  container.replaceChildren(...buttons);
}
