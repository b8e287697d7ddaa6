// Server-sent events: text that arrives in pieces, split into the data of each event.

export class EventReader {
  #rest = "";

  /** The data of the events that `text` completes. */
  read(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    return lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
  }
}
