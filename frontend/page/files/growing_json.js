// JSON that is still being written: the value so far, and the place where the text ends.

/**
 * Reads text that may end anywhere inside a JSON value. Returns `state` ("empty", "open", "complete" or
 * "invalid"), the `value` so far, and for an open value its `path`: keys and indices from the outside in.
 */
export function readGrowing(text) {
  const reader = new Reader(text);
  try {
    reader.skip();
    if (reader.ended) return { state: "empty", value: undefined, path: [] };
    const value = reader.value([]);
    if (reader.path) return { state: "open", value, path: reader.path };
    reader.skip();
    return { state: reader.ended ? "complete" : "invalid", value, path: [] };
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof RangeError) return { state: "invalid", value: undefined, path: [] };
    throw error;
  }
}

const WORDS = { true: true, false: false, null: null };
const ESCAPES = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };

class Reader {
  at = 0;
  path = null; // of the innermost value that the text leaves open

  constructor(text) {
    this.text = text;
  }

  get ended() {
    return this.at >= this.text.length;
  }

  skip() {
    while (" \t\r\n".includes(this.text[this.at] ?? "x")) this.at++;
  }

  open(path) {
    this.path ??= [...path];
  }

  value(path) {
    const first = this.text[this.at];
    if (first === "{") return this.object(path);
    if (first === "[") return this.list(path);
    if (first === '"') return this.string(path);
    return this.scalar(path);
  }

  object(path) {
    const found = {};
    this.at++;
    for (this.skip(); ; this.skip()) {
      if (this.ended) return this.open(path), found;
      if (this.text[this.at] === "}") return this.at++, found;
      const key = this.string(path);
      if (this.path) return found; // the key is not complete
      this.skip();
      if (this.ended) return this.open(path), found;
      this.expect(":");
      this.skip();
      const inside = [...path, key];
      if (this.ended) return this.open(inside), found;
      const value = this.value(inside);
      Object.defineProperty(found, key, { value, enumerable: true, writable: true, configurable: true });
      if (this.path || this.comma(path, "}")) return found;
    }
  }

  list(path) {
    const found = [];
    this.at++;
    for (this.skip(); ; this.skip()) {
      const inside = [...path, found.length];
      if (this.ended) return this.open(found.length ? inside : path), found;
      if (this.text[this.at] === "]") return this.at++, found;
      found.push(this.value(inside));
      if (this.path || this.comma(path, "]")) return found;
    }
  }

  /** Whether the object or list ends here, by its last character or because the text does. */
  comma(path, end) {
    this.skip();
    if (this.ended) return this.open(path), true;
    if (this.text[this.at] === end) return this.at++, true;
    this.expect(",");
    this.skip();
    if (this.text[this.at] === end) throw new SyntaxError("a comma before the end");
    return false;
  }

  expect(character) {
    if (this.text[this.at] !== character) throw new SyntaxError(`${character} is missing at ${this.at}`);
    this.at++;
  }

  string(path) {
    this.expect('"');
    let found = "";
    for (;;) {
      if (this.ended) return this.open(path), found;
      const next = this.text[this.at++];
      if (next === '"') return found;
      if (next !== "\\") {
        found += next;
        continue;
      }
      const escaped = this.text[this.at];
      const length = escaped === "u" ? 5 : 1;
      if (this.at + length > this.text.length) {
        this.at = this.text.length;
        return this.open(path), found;
      }
      const code = this.text.slice(this.at + 1, this.at + length);
      found += escaped === "u" ? String.fromCharCode(parseInt(code, 16)) : (ESCAPES[escaped] ?? escaped);
      this.at += length;
    }
  }

  /** A number or a word. At the end of the text a number may go on, so it is open. */
  scalar(path) {
    const [found] = /^[-+.\w]*/.exec(this.text.slice(this.at));
    this.at += found.length;
    if (this.ended && !(found in WORDS)) {
      const word = Object.keys(WORDS).find((each) => found && each.startsWith(found));
      const number = parseFloat(found);
      if (!word && found !== "-" && Number.isNaN(number)) throw new SyntaxError(`${found} is no value`);
      this.open(path);
      return Number.isNaN(number) ? undefined : number;
    }
    if (found in WORDS) return WORDS[found];
    if (!/^-?\d+(\.\d+)?([eE][-+]?\d+)?$/.test(found)) throw new SyntaxError(`${found} is no value`);
    return Number(found);
  }
}
