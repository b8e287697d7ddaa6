// The prompt of a reply: how much of it was cached, its text with the cached part shaded, and why the rest was not.
import { postJson } from "./api.js";
import { count, decimal, draftsText, element, plural } from "./dom.js";
import { commonStart } from "./icicle.js";
import { cachedShare, draftsOf } from "./reply.js";

const CAUSES = {
  new: "in no earlier prompt",
  short: "at the end, where the last tokens are computed each time",
  checkpoint: "in the cache, but without a state to continue from",
  evicted: "removed from the cache since",
  namespace: "sent in another namespace",
  volatile: "behind a line that differs only in a time or an id",
  tools: "behind changed tools",
  system: "behind a changed system prompt",
  history: "behind a changed earlier message",
  template: "behind a message that the template renders in another way now",
  off: "the cache was off",
};
const CAUSE_TITLES = {
  short: "An earlier prompt has these tokens too. They are fewer than a page, the cache's unit of 16 tokens: the last token of a prompt is always computed.",
  checkpoint: "This model keeps the state of its recurrent layers only at some places of a prompt.",
  namespace: "A namespace is a part of the cache for one cache_salt.",
};

/** When the first piece came and how fast the others did, in words; empty where that is not known. */
export function speedText({ first, rate }) {
  const parts = [];
  if (first !== null) parts.push(first < 1000 ? `first after ${first} ms` : `first after ${(first / 1000).toFixed(1)} s`);
  if (rate !== null) parts.push(`${decimal(rate)} tokens/s`);
  return parts.join(" · ");
}

/** A line with the cached share and the speed. Opening it fetches the prompt of the request that `request` returns, and opening it again does so if that failed. */
export function promptView(usage, speed, explanation, request) {
  const { prompt, cached, percent } = cachedShare(usage);
  const bar = element("meter", { min: 0, max: prompt, value: cached, "aria-label": "Cached part of the prompt", title: `${percent} %` });
  const cachedText = `${count(cached)} of ${plural(prompt, "prompt token")} cached`;
  const text = [cachedText, plural(usage.completion_tokens, "token"), speedText(speed), draftsText(draftsOf(usage))].filter(Boolean).join(" · ");
  const place = element("div");
  const view = element("details", { class: "prompt" }, element("summary", {}, bar, text), place);
  const open = async () => {
    if (!view.open) return;
    view.removeEventListener("toggle", open);
    if (!(await fill(place, explanation, request(), cached))) view.addEventListener("toggle", open);
  };
  view.addEventListener("toggle", open);
  return view;
}

/** Fetches the prompt and shows it, or why that failed, in `place`. Resolves to whether the prompt is there. */
async function fill(place, explanation, request, cached) {
  place.replaceChildren("Fetching the prompt …");
  try {
    const { model, messages, tools } = request;
    const { tokens } = await postJson("tokenize", { model, messages, tools });
    const parts = [tokens.slice(0, cached), tokens.slice(cached)];
    const texts = await Promise.all(parts.map((ids) => (ids.length ? postJson("detokenize", { model, tokens: ids }) : { prompt: "" })));
    place.replaceChildren(causes(explanation), shaded(texts[0].prompt, texts[1].prompt));
    return true;
  } catch (error) {
    place.replaceChildren(element("p", { class: "error" }, `${error.message} Close this and open it again for another try.`));
    return false;
  }
}

/** The prompt as the chat template has rendered it. */
function shaded(cached, computed) {
  return element(
    "pre",
    { class: "rendered", tabindex: 0, "aria-label": "The prompt; its cached part is shaded" },
    cached ? element("mark", { title: "found in the cache" }, cached) : null,
    element("span", { title: "computed for this reply" }, computed),
  );
}

function causes(explanation) {
  if (!explanation) return "";
  const rows = Object.entries(explanation.causes).map(([cause, tokens]) =>
    element("li", { title: CAUSE_TITLES[cause] ?? null }, `${count(tokens)} computed: ${CAUSES[cause] ?? cause}`),
  );
  const { difference, matched_tokens, could_match_tokens, prompt_tokens } = explanation;
  const found = `${count(matched_tokens)} of ${plural(prompt_tokens, "token")} found in the cache`;
  const could = could_match_tokens > matched_tokens ? `${found}; ${count(could_match_tokens)} could have been.` : `${found}.`;
  return element("div", {}, element("p", {}, could), element("ul", { class: "causes" }, ...rows), difference ? departure(difference) : null);
}

/** Where the prompt leaves the nearest earlier one, and both texts there. The server has escaped what can't be seen in them. */
function departure({ part, index, role, token, character, note, prompt, earlier }) {
  const places = { prompt: "the prompt", system: "the system prompt", tool: `tools[${index}]`, message: `messages[${index}]${role ? ` (${role})` : ""}` };
  const same = commonStart(prompt, earlier);
  const text = (title, whole) =>
    element("div", {}, element("h3", {}, title), element("pre", {}, whole.slice(0, same), element("mark", {}, whole.slice(same))));
  return element(
    "section",
    { class: "departure", "aria-label": "First difference from an earlier prompt" },
    element("p", {}, `First difference in ${places[part] ?? part}, at token ${count(token)}, character ${count(character)}. ${note}`),
    element("div", { class: "texts" }, text("This prompt", prompt), text("Earlier prompt", earlier)),
  );
}
