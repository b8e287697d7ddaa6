// The list of chats that the browser keeps: search, rename, delete with undo, export and import.
import { currentKey, tabStorage } from "./api.js";
import { readChat, writeChat } from "./chat_file.js";
import { ChatStore, ownerName } from "./chat_store.js";
import { byId, element, iconButton, plural, showNotice } from "./dom.js";
import { readTree } from "./message_tree.js";

const CURRENT = "arbora-chat"; // the tab's chat, in its session storage
const DAY = 24 * 3600 * 1000; // milliseconds
const AGES = ["Today", "Yesterday", "Earlier"];

export class ChatList {
  #chat;
  #store = null;
  #removed = new Set(); // ids; a reply of such a chat may still end
  #renaming = null; // an id

  /** `chat` is the view that shows the chosen chat. */
  constructor(chat) {
    this.#chat = chat;
    this.#openStore();
    const current = this.#store.get(tabStorage.getItem(CURRENT));
    if (current) this.#open(current);
    byId("new-chat").addEventListener("click", () => this.#choose(null));
    byId("search").addEventListener("input", () => this.draw());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", () => this.#import());
    byId("delete-all").addEventListener("click", () => this.#remove(this.#store.list()));
    window.addEventListener("storage", ({ key }) => this.#store.notice(key) && this.draw());
  }

  /** Shows the chats of the present key. The chat that is shown stays if it is not kept yet or waits for the key. */
  changeOwner() {
    const stays = this.#chat.isBusy || !this.#store.get(this.#chat.id);
    this.#openStore();
    if (!stays) this.#choose(null);
  }

  #openStore() {
    this.#store = new ChatStore(() => localStorage, ownerName(currentKey()));
    this.#showTrouble(this.#store.trouble);
    this.draw();
  }

  keep(chat) {
    if (this.#removed.has(chat.id)) return;
    this.#showTrouble(this.#store.save(chat));
    if (chat.id === this.#chat.id) tabStorage.setItem(CURRENT, chat.id);
    this.draw();
  }

  #showTrouble(trouble) {
    byId("chats-trouble").textContent = trouble ?? "";
  }

  draw() {
    const chats = this.#store.list(byId("search").value);
    const lists = AGES.map((age) => [age, chats.filter(({ updated }) => ageOf(updated) === age)])
      .filter(([, members]) => members.length)
      .map(([age, members]) => element("section", { "aria-label": age }, element("h3", {}, age), element("ul", {}, ...members.map((each) => this.#item(each)))));
    const nothing = byId("search").value ? "No chat has these words." : "Chats appear here. This browser keeps them.";
    byId("chat-items").replaceChildren(...(lists.length ? lists : [element("p", { class: "hint" }, nothing)]));
    byId("delete-all").hidden = !chats.length || Boolean(byId("search").value);
    byId("chat-items").querySelector("input")?.focus();
  }

  #item(chat) {
    const isCurrent = chat.id === this.#chat.id;
    if (chat.id === this.#renaming) return element("li", { class: "chat-item" }, this.#renameBox(chat));
    const open = element("button", { type: "button", class: "open", title: chat.title, onclick: () => this.#choose(chat.id) }, chat.title);
    if (isCurrent) open.setAttribute("aria-current", "true");
    return element(
      "li",
      { class: isCurrent ? "chat-item current" : "chat-item" },
      open,
      iconButton("edit", `Rename ${chat.title}`, () => this.#rename(chat.id)),
      iconButton("save", `Export ${chat.title}`, () => this.#export(chat.id)),
      iconButton("delete", `Delete ${chat.title}`, () => this.#remove([chat])),
    );
  }

  #renameBox({ id, title }) {
    const box = element("input", { "aria-label": "Name of the chat", value: title, maxlength: 200 });
    let isOver = false;
    const end = (name) => {
      if (isOver) return;
      isOver = true;
      this.#rename(null);
      const kept = this.#store.get(id);
      if (!name || !kept) return;
      this.#store.save({ ...kept, title: name, isNamed: true });
      if (id === this.#chat.id) this.#chat.rename(name);
      this.draw();
    };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(box.value.trim());
      if (event.key === "Escape") end("");
    });
    box.addEventListener("blur", () => end(box.value.trim()));
    return box;
  }

  #rename(id) {
    this.#renaming = id;
    this.draw();
  }

  #choose(id) {
    this.#open(id === null ? null : this.#store.get(id));
    byId("chats").dispatchEvent(new CustomEvent("choose"));
  }

  #open(kept) {
    try {
      this.#chat.open(kept);
    } catch (error) {
      showNotice(`This chat can't be read: ${error.message}`);
      this.#chat.open(null);
    }
    if (kept) tabStorage.setItem(CURRENT, this.#chat.id);
    else tabStorage.removeItem(CURRENT);
    this.draw();
  }

  #remove(chats) {
    const kept = chats.map(({ id }) => this.#store.get(id));
    const shown = kept.find(({ id }) => id === this.#chat.id);
    for (const { id } of chats) {
      this.#removed.add(id);
      this.#store.remove(id);
    }
    if (shown) this.#open(null);
    else this.draw();
    const undo = () => {
      for (const each of kept) {
        this.#removed.delete(each.id);
        this.#showTrouble(this.#store.save(each));
      }
      if (shown) this.#open(shown);
      else this.draw();
    };
    const what = kept.length === 1 ? `“${kept[0].title}” is deleted.` : `${plural(kept.length, "chat")} are deleted.`;
    showNotice(what, { label: "Undo", run: undo });
  }

  #export(id) {
    const kept = this.#store.get(id);
    const file = writeChat({ ...kept, tree: readTree(kept.tree) });
    const address = URL.createObjectURL(new Blob([`${JSON.stringify(file, null, 1)}\n`], { type: "application/json" }));
    const name = kept.title.replace(/[^\p{L}\p{N} ._-]+/gu, " ").trim() || "chat";
    element("a", { href: address, download: `${name}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  async #import() {
    const [file] = byId("import-file").files;
    byId("import-file").value = "";
    try {
      const { title, settings, tree } = readChat(await file.text());
      const chat = { id: crypto.getRandomValues(new Uint32Array(3)).join("-"), title: title || file.name.replace(/\.json$/, ""), isNamed: true, updated: Date.now(), settings, tree };
      this.#showTrouble(this.#store.save(chat));
      this.#choose(chat.id);
    } catch (error) {
      showNotice(`${file.name} is not imported: ${error.message}.`);
    }
  }
}

function ageOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  return AGES[time >= today ? 0 : time >= today - DAY ? 1 : 2];
}
