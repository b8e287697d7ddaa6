// What a reply says before its first token: how much of the prompt is ready, or how long it has waited.
import { getJson } from "./api.js";
import { count } from "./dom.js";

const SILENCE = 2000; // milliseconds without a token before it says anything
const INTERVAL = 1000; // milliseconds between two questions to the server

/** Shows in `place` how far the reply is, until the returned function is called. */
export function showWaiting(place) {
  const begun = performance.now();
  let isOver = false;
  let timer = setTimeout(look, SILENCE);
  async function look() {
    const requests = await getJson("server/requests").catch(() => ({})); // without an answer there is still the time
    if (isOver) return;
    place.textContent = waitingText(requests, (performance.now() - begun) / 1000);
    timer = setTimeout(look, INTERVAL);
  }
  return () => {
    isOver = true;
    clearTimeout(timer);
    place.textContent = "";
  };
}

/** How far a reply is that has waited for some `seconds`. A single open request is its own; which one of several is not known. */
export function waitingText({ open, open_total: total }, seconds) {
  const { prompt_tokens: prompt, ready_tokens: ready } = (total === 1 && open?.[0]) || {};
  return prompt ? `${count(ready ?? 0)} of ${count(prompt)} prompt tokens ready` : `waiting for the first token, ${Math.floor(seconds)} s`;
}
