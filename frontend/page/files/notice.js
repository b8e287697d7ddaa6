// A line at the foot of the page that says what has happened, with a button that may undo it.
import { byId, element, iconButton } from "./dom.js";

const SECONDS = 10;
let ending = 0;

/** Shows `text` for some seconds; `action` is `{label, run}`. */
export function showNotice(text, action = null) {
  clearTimeout(ending);
  const button = action && element("button", { type: "button", onclick: () => (hide(), action.run()) }, action.label);
  byId("notice").replaceChildren(element("span", {}, text), button ?? "", iconButton("close", "Close this notice", hide));
  byId("notice").classList.add("shown");
  ending = setTimeout(hide, SECONDS * 1000);
}

function hide() {
  byId("notice").classList.remove("shown");
  byId("notice").replaceChildren();
}
