// Begins the page: views, the key, and what is fetched again and again.
import { ServerError, hasKey, keepKey } from "./api.js";
import { Chat } from "./chat.js";
import { ChatPath } from "./chat_path.js";
import { ChatList } from "./chat_list.js";
import { byId } from "./dom.js";
import { watchEditors } from "./editors.js";
import { hasSeveralModels } from "./models.js";
import { ServerView } from "./server.js";
import { showModels, watchSettings } from "./settings.js";
import { watchSidebar } from "./sidebar.js";
import { TreeView } from "./tree.js";

const SECONDS = 2; // between two refreshes of a view
const views = ["chat", "server"];
let asking = null; // the key dialog's promise while it is open
let list = null; // the list of chats
let isDeclined = false; // the dialog was closed without a key, so it opens only for a request of the user

/** Asks for a key and resolves to whether the user gave one. All that need one wait for the same answer. */
function askForKey(reason) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    byId("key-error").textContent = hasKey() ? reason : "";
    byId("key").value = "";
    dialog.returnValue = ""; // Esc leaves it empty, even if a part of a key was typed
    dialog.addEventListener("close", () => resolve(dialog.returnValue !== ""), { once: true });
    dialog.showModal();
  }).then((isKept) => {
    asking = null;
    isDeclined = !isKept;
    if (isKept) list.changeOwner();
    byId("change-key").hidden = false;
    return isKept;
  });
  return asking;
}

/** Closes the key dialog if the server takes the key; else the dialog says why not. */
async function useTypedKey(event) {
  event.preventDefault();
  try {
    await keepKey(byId("key").value.trim());
    byId("key-dialog").close("use");
  } catch (error) {
    byId("key-error").textContent = error.message;
    byId("key").select();
  }
}

/** Runs `work` and shows in the header whether the server answers. */
async function attempt(work) {
  const health = byId("health");
  try {
    await work();
    health.textContent = "";
  } catch (error) {
    if (error instanceof ServerError && error.status === 401 && !isDeclined) await askForKey(error.message);
    else health.textContent = error.message;
  }
}

function shownView() {
  return views.find((view) => location.hash === `#${view}`) ?? "chat";
}

function showView() {
  for (const id of ["toggle-chats", "open-settings"]) byId(id).hidden = shownView() !== "chat";
  byId("model").hidden = shownView() !== "chat" && !hasSeveralModels(); // the Server view shows the cache of one
  for (const view of views) {
    const isShown = view === shownView();
    byId(view).hidden = !isShown;
    if (isShown) byId(`to-${view}`).setAttribute("aria-current", "page");
    else byId(`to-${view}`).removeAttribute("aria-current");
  }
}

async function begin() {
  const wide = matchMedia("(min-width: 1100px)");
  let chat = null;
  watchSettings(() => chat.saveSettings());
  watchEditors();
  watchSidebar();
  const server = new ServerView();
  const serverTree = new TreeView(byId("server-tree"), () => byId("salt").value);
  const openTree = (node) => {
    byId("salt").value = "";
    serverTree.show(node);
    location.hash = "server";
    showView();
    refresh().then(() => byId("server-tree").scrollIntoView()); // the tables above it have their heights then
  };
  const path = new ChatPath(document.querySelector("#chat-tree .tree"), { read: () => chat?.readPath(), onOpen: openTree });
  const refresh = async (isAtOnce = false) => {
    if (document.hidden || asking) return;
    if (hasSeveralModels()) await attempt(showModels); // a message, or time, has loaded or unloaded some
    if (shownView() === "server") await attempt(() => Promise.all([server.refresh(), serverTree.refresh()]));
    else if (wide.matches) await attempt(() => (isAtOnce ? path.refreshNow() : path.refresh()));
  };
  let hasStarted = false; // the server
  const onPath = () => {
    path.change();
    if (hasStarted && !chat.isBusy) refresh();
  };
  chat = new Chat({ onChange: (isOver) => isOver && refresh(true), onPath, onUnauthorized: askForKey, onSave: (kept) => list.keep(kept) });
  list = new ChatList(chat);
  window.addEventListener("hashchange", () => {
    showView();
    refresh();
  });
  byId("salt").addEventListener("change", () => refresh());
  byId("key-dialog").addEventListener("submit", useTypedKey);
  byId("change-key").addEventListener("click", () => askForKey("").then(() => refresh()));
  byId("change-key").hidden = !hasKey();
  showView();
  byId("message").focus();
  while (!hasStarted) {
    await attempt(async () => (hasStarted = await showModels()));
    chat.showModel();
    if (!hasStarted) await new Promise((resolve) => setTimeout(resolve, SECONDS * 1000));
  }
  for (;;) {
    await refresh();
    await new Promise((resolve) => setTimeout(resolve, SECONDS * 1000));
  }
}

await begin();
