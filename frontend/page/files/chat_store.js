// The chats that this browser keeps, one entry of its storage for each.
import { MessageTree } from "./message_tree.js";

const PREFIX = "arbora-chats/";
const MAX_TITLE = 60; // characters

/** A short name for a key, from which the key can't be computed: each key has a list of chats of its own. */
export function ownerName(key) {
  if (key === null) return "all";
  let hash = 0x811c9dc5; // FNV-1a, 32 bits
  for (let index = 0; index < key.length; index++) hash = Math.imul(hash ^ key.charCodeAt(index), 0x01000193) >>> 0;
  return hash.toString(16).padStart(8, "0");
}

/**
 * Chats are objects with `id`, `title`, `updated` (milliseconds) and whatever JSON can write. If the browser does not keep
 * them, because its storage is forbidden or full, they last as long as this object.
 */
export class ChatStore {
  #storage;
  #prefix;
  #chats = new Map(); // texts of JSON by id

  /** `storage` returns a Storage, or throws where a browser forbids it. */
  constructor(storage, owner) {
    this.#prefix = `${PREFIX}${owner}/`;
    try {
      this.#storage = storage();
      for (let index = 0; index < this.#storage.length; index++) this.#read(this.#storage.key(index));
    } catch {
      this.#storage = null;
    }
  }

  #read(name) {
    if (!name.startsWith(this.#prefix)) return;
    try {
      const text = this.#storage.getItem(name);
      if (JSON.parse(text).id === name.slice(this.#prefix.length)) this.#chats.set(name.slice(this.#prefix.length), text);
    } catch {
      // The entry is not of this page.
    }
  }

  /** Why chats are not kept; null if they are. */
  get trouble() {
    return this.#storage ? null : "This browser does not let the page keep chats: they end with this tab. Export those that you need.";
  }

  /** Takes over what another tab has done to the entry `name`, if it is one of these chats. Returns its id, or null. */
  notice(name) {
    if (!this.#storage || !name?.startsWith(this.#prefix)) return null;
    const id = name.slice(this.#prefix.length);
    this.#chats.delete(id);
    this.#read(name);
    return id;
  }

  /** `{id, title, updated}` of the chats that have `words` in their titles or messages, newest first. */
  list(words = "") {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const chats = [...this.#chats.values()].map((text) => JSON.parse(text));
    const found = chats.filter((chat) => wanted.every((word) => searchText(chat).includes(word)));
    return found.map(({ id, title, updated }) => ({ id, title, updated })).sort((one, other) => other.updated - one.updated);
  }

  get(id) {
    return this.#chats.has(id) ? JSON.parse(this.#chats.get(id)) : null;
  }

  /** Keeps a chat. Returns why it lasts no longer than this tab, or null. */
  save(chat) {
    const text = JSON.stringify(chat);
    this.#chats.set(chat.id, text);
    if (!this.#storage) return this.trouble;
    try {
      this.#storage.setItem(this.#prefix + chat.id, text);
      return null;
    } catch {
      return "This browser's storage for the page is full: the newest messages are kept only in this tab. Export chats, then delete them.";
    }
  }

  remove(id) {
    this.#chats.delete(id);
    this.#storage?.removeItem(this.#prefix + id);
  }
}

function searchText({ title, tree }) {
  const texts = (tree?.nodes ?? []).map((node) => [node.message.content, ...(node.documents ?? []).map((each) => each.name)].join("\n"));
  return [title, ...texts].join("\n").toLowerCase();
}

/** A chat without messages. */
export function newChat() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", isNamed: false, updated: Date.now(), settings: {}, tree: new MessageTree() };
}

/** The beginning of the first message that the branch has. */
export function titleOf(tree) {
  const { message, documents } = tree.path().find((node) => node.message.role === "user") ?? {};
  const line = message?.content.trim().split("\n")[0] || documents?.[0]?.name || "Chat";
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}
