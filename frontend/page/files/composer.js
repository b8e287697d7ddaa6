// The box for messages: its text, its documents, and the keys that send, stop and edit.
import { Attachments } from "./attachments.js";
import { byId, showNotice } from "./dom.js";

export class Composer {
  #attachments;
  #actions;
  #filled = {}; // what `put` has put into the box

  /** `actions`: `send`, `stop`, `editLast`, and `escape`, which returns whether there was something to end. */
  constructor(actions) {
    this.#actions = actions;
    this.#attachments = new Attachments();
    const box = byId("message");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    box.addEventListener("keydown", (event) => this.#press(event));
    box.addEventListener("input", () => this.#fit());
    byId("stop").addEventListener("click", actions.stop);
    byId("stop-editing").addEventListener("click", actions.escape);
    document.addEventListener("keydown", (event) => {
      const isElsewhere = document.querySelector("dialog[open]") || event.target.closest?.("#chats");
      if (event.key === "Escape" && !event.defaultPrevented && !isElsewhere && !byId("chat").hidden && actions.escape()) event.preventDefault();
    });
  }

  #send() {
    if (this.#attachments.isReading) showNotice("The documents are still being read.");
    else this.#actions.send();
  }

  #press(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.#send();
    } else if (event.key === "ArrowUp" && !byId("message").value && this.#actions.editLast()) {
      event.preventDefault();
    }
  }

  /** Makes the box as high as its text; the style sheet limits it. */
  #fit() {
    const box = byId("message");
    box.rows = Math.min(12, Math.max(1, box.value.split("\n").length));
    while (box.rows < 12 && box.scrollHeight > box.clientHeight + 2) box.rows++;
  }

  /** `{text, documents, followUp}` of the box; null if there is nothing to send. `followUp` is undefined if the user has changed what was put there. */
  read() {
    const text = byId("message").value;
    const documents = this.#attachments.documents;
    const isSame = text === this.#filled.text && documents.length === this.#filled.documents.length;
    return text.trim() || documents.length ? { text, documents, followUp: isSame ? this.#filled.followUp : undefined } : null;
  }

  /** Fills the box. `followUp` is the `{note, message}` that the page offers after the reply to an example. */
  put({ text = "", documents = [], followUp } = {}) {
    this.#filled = { text, documents, followUp };
    byId("message").value = text;
    this.#attachments.show(documents);
    this.#fit();
  }

  /** Puts the cursor into the box; on a touch screen, where that opens the keyboard, only if the user `isWriting`. */
  focus(isWriting = false) {
    if (isWriting || matchMedia("(hover: hover)").matches) byId("message").focus();
  }

  /** Shows whether the box has the text of an earlier message. */
  showEditing(isEditing) {
    byId("editing").hidden = !isEditing;
  }

  showRunning(isRunning) {
    byId("stop").hidden = !isRunning;
    byId("send").hidden = isRunning;
  }
}
