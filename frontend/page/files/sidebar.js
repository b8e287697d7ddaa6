// The list of chats beside the chat: shown or hidden by a button, on narrow windows above the chat.
import { byId } from "./dom.js";

const HIDDEN = "arbora-list-hidden";
const wide = matchMedia("(min-width: 900px)");

export function watchSidebar() {
  show(wide.matches && remembered() !== "true");
  wide.addEventListener("change", () => show(wide.matches && remembered() !== "true"));
  byId("toggle-chats").addEventListener("click", () => {
    const isShown = !byId("chats").hidden;
    if (wide.matches) remember(isShown);
    show(!isShown);
    if (!isShown && !wide.matches) byId("new-chat").focus();
  });
  byId("chats-shade").addEventListener("click", leave);
  byId("chats").addEventListener("choose", () => !wide.matches && show(false));
  byId("chats").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !wide.matches && event.target.getAttribute("aria-label") !== "Name of the chat") leave();
  });
}

function leave() {
  show(false);
  byId("toggle-chats").focus();
}

function show(isShown) {
  byId("chats").hidden = !isShown;
  byId("chats-shade").hidden = !isShown || wide.matches;
  byId("toggle-chats").setAttribute("aria-expanded", String(isShown));
  byId("conversation").inert = isShown && !wide.matches;
}

function remembered() {
  try {
    return localStorage.getItem(HIDDEN);
  } catch {
    return null;
  }
}

function remember(isHidden) {
  try {
    localStorage.setItem(HIDDEN, String(isHidden));
  } catch {
    // A browser that keeps nothing shows the list with the next load.
  }
}
