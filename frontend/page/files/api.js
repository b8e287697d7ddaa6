// Requests to the server. A key is kept in the tab's session storage.
import { EventReader } from "./events.js";

const KEY = "arbora-key";

/** The tab's session storage; where a browser forbids it, one that ends with the page. */
export const tabStorage = openTabStorage();

function openTabStorage() {
  try {
    return sessionStorage;
  } catch {
    const items = new Map();
    return { getItem: (name) => items.get(name) ?? null, setItem: (name, value) => items.set(name, value), removeItem: (name) => items.delete(name) };
  }
}

/** An answer of the server with an error status; `message` is the server's own. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function hasKey() {
  return tabStorage.getItem(KEY) !== null;
}

/** The key of this tab; null for none. */
export function currentKey() {
  return tabStorage.getItem(KEY);
}

/** Keeps a key that the server takes. Otherwise throws the server's error. */
export async function keepKey(key) {
  await send("v1/models", undefined, undefined, key);
  tabStorage.setItem(KEY, key);
}

async function send(path, body, signal, key = tabStorage.getItem(KEY)) {
  const headers = {};
  if (key !== null) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const init = { headers, signal, credentials: "omit", method: body === undefined ? "GET" : "POST" };
  if (body !== undefined) init.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server can't be reached. Is it still running?");
  }
  if (response.ok) return response;
  const text = await response.text();
  throw new ServerError(response.status, errorText(text) || `The server answered ${response.status}.`);
}

/** The message in the JSON of an error; the text itself if it is not JSON. */
function errorText(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 500);
  }
}

export async function getJson(path) {
  return (await send(path)).json();
}

export async function getText(path) {
  return (await send(path)).text();
}

export async function postJson(path, body) {
  return (await send(path, body)).json();
}

/** The chunks of a streamed reply. An error in the stream is thrown. */
export async function* stream(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ServerError(0, "The server closed the connection before the reply was complete.");
    for (const data of events.read(value)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.code ?? 500, chunk.error.message);
      yield chunk;
    }
  }
}
