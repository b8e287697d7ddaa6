// Documents of a message: they stand before its question, so that another question about them finds them in the cache.

const CHARACTERS_A_TOKEN = 4; // of English text, about

/** The text of a message with documents. */
export function withDocuments(documents, question) {
  const parts = documents.map(({ name, text }) => `Document ${name}:\n${text.trim()}`);
  return [...parts, question].filter(Boolean).join("\n\n");
}

/** About how many tokens a text has. */
export function estimateTokens(text) {
  return Math.ceil(text.length / CHARACTERS_A_TOKEN);
}

/** The text of a file's bytes: UTF-8, or UTF-16 with a byte order mark; null if they are no text. */
export function decodeText(bytes) {
  const mark = bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : bytes[0] === 0xfe && bytes[1] === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(mark, { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text.replace(/\r\n?/g, "\n");
  } catch {
    return null;
  }
}
