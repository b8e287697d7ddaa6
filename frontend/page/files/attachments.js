// The documents of the next message: chosen by a button or dropped on the chat, and shown as chips that can be removed.
import { postJson } from "./api.js";
import { byId, count, element, iconButton, plural, showNotice } from "./dom.js";
import { modelCard } from "./models.js";

const MAX_BYTES = 20 * 1024 * 1024;
const MEBI = 1024 * 1024;
const CHARACTERS_A_TOKEN = 4; // of English text, about
const MAX_COUNTED = 200_000; // characters; the tokens of a longer document are estimated

export class Attachments {
  documents = []; // {name, text}
  #reading = 0; // files
  #counts = new WeakMap(); // tokens by document, as far as the server has counted them

  get isReading() {
    return this.#reading > 0;
  }

  constructor() {
    const input = byId("files");
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", async () => {
      await this.#add([...input.files]);
      input.value = "";
    });
    byId("message").addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.#add([...event.clipboardData.files]);
    });
    this.#watchDrops();
  }

  /** Files may be dropped anywhere: a browser would show one that the page does not take. */
  #watchDrops() {
    const mark = (isOver) => byId("conversation").classList.toggle("dropping", isOver);
    const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(true);
    });
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && mark(false));
    document.addEventListener("drop", (event) => {
      mark(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.#add([...event.dataTransfer.files]);
    });
  }

  async #add(files) {
    const refusals = [];
    this.#reading += files.length;
    for (const file of files) {
      const waiting = element("li", { class: "chip" }, `Reading ${file.name} …`);
      byId("attachments").append(waiting);
      try {
        this.documents.push(await readFile(file));
        byId("announcement").textContent = `${file.name} is added.`;
      } catch (error) {
        refusals.push(`${file.name}: ${error.message}`);
      }
      this.#reading--;
      waiting.remove();
      this.show(this.documents);
    }
    if (refusals.length) showNotice(refusals.join(" "));
    byId("message").focus();
  }

  show(documents) {
    this.documents = [...documents];
    byId("attachments").replaceChildren(...this.documents.map((each) => this.#chip(each)));
  }

  #chip(document) {
    const remove = iconButton("close", `Remove ${document.name}`, () => {
      this.show(this.documents.filter((each) => each !== document));
      byId("message").focus();
    });
    const size = element("span", { class: "faint" });
    const chip = element("li", { class: "chip" }, element("span", { class: "name" }, document.name), size, remove);
    const showSize = () => {
      const { text, isLong } = this.#size(document);
      size.textContent = text;
      chip.classList.toggle("wrong", isLong);
    };
    showSize();
    if (!this.#counts.has(document)) this.#count(document).then(showSize);
    return chip;
  }

  /** How many tokens a document has, in words, and whether they are too many. */
  #size(document) {
    const counted = this.#counts.get(document);
    const tokens = counted ?? Math.ceil(document.text.length / CHARACTERS_A_TOKEN);
    const most = modelCard()?.max_model_len;
    const isLong = Boolean(most) && tokens > most;
    return { text: `${counted ? "" : "about "}${plural(tokens, "token")}${isLong ? `, more than the ${count(most)} that fit` : ""}`, isLong };
  }

  async #count(document) {
    const model = modelCard();
    if (!model?.max_model_len || document.text.length > MAX_COUNTED) return;
    try {
      const answer = await postJson("tokenize", { model: model.id, prompt: document.text, add_special_tokens: false });
      this.#counts.set(document, answer.count);
    } catch {
      // The estimate stays; what is wrong is said when the message is sent.
    }
  }
}

/** `{name, text}` of a text, Markdown or PDF file. Throws an Error that says why it can't be read. */
async function readFile(file) {
  if (file.size > MAX_BYTES) throw new Error(`it has ${Math.ceil(file.size / MEBI)} MiB, but at most ${MAX_BYTES / MEBI} MiB are read.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = isPdf(bytes) ? await readPdfFile(bytes) : decodeText(bytes);
  if (text === null) throw new Error("it is neither text in UTF-8 nor a PDF.");
  if (!text.trim()) throw new Error("it has no text.");
  return { name: file.name, text };
}

function isPdf(bytes) {
  return String.fromCharCode(...bytes.slice(0, 5)) === "%PDF-";
}

/** The library is loaded with the first PDF. */
async function readPdfFile(bytes) {
  const { readPdf } = await import("./pdf_text.js");
  return readPdf(bytes);
}

/** The text of a file's bytes: UTF-8, or UTF-16 with a byte order mark; null if they are no text. */
function decodeText(bytes) {
  const mark = bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : bytes[0] === 0xfe && bytes[1] === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(mark, { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text.replace(/\r\n?/g, "\n");
  } catch {
    return null;
  }
}
