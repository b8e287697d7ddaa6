// The text of PDFs, read by pdf.js. It runs in the page's own thread: Trusted Types forbid scripts to start workers by an address.
import { getDocument } from "./vendor/pdf.js";
import "./vendor/pdf_worker.js";

const MAX_PAGES = 2000;

/** The text of a PDF's pages, with an empty line between two. Throws an Error that says why it can't be read. */
export async function readPdf(data) {
  const loading = getDocument({ data, disableFontFace: true, useSystemFonts: false, isEvalSupported: false, useWasm: false, verbosity: 0 });
  try {
    const pdf = await loading.promise;
    if (pdf.numPages > MAX_PAGES) throw new Error(`it has ${pdf.numPages} pages, but at most ${MAX_PAGES} are read.`);
    const pages = [];
    for (let number = 1; number <= pdf.numPages; number++) pages.push(await readPage(await pdf.getPage(number)));
    const text = pages.filter(Boolean).join("\n\n");
    if (!text) throw new Error("it has no text: its pages may be pictures.");
    return text;
  } catch (error) {
    if (error.name === "PasswordException") throw new Error("it needs a password.");
    if (error.name === "InvalidPDFException") throw new Error("it is a damaged PDF.");
    throw error;
  } finally {
    await loading.destroy();
  }
}

async function readPage(page) {
  const { items } = await page.getTextContent();
  const text = items.map(({ str = "", hasEOL }) => str + (hasEOL ? "\n" : "")).join("");
  page.cleanup();
  return text.replaceAll("\0", "\ufffd").replace(/[ \t]+\n/g, "\n").trim(); // 0 stands for letters that the file does not name
}
