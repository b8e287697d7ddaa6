// A reply that grows by the chunks of a stream of /v1/chat/completions.

const MIN_TIMED = 50; // milliseconds: if all tokens arrive within this time, no speed is shown

/** `begun`, `first` and `last` are times in milliseconds: of the request, of the first piece and of the latest. */
export function emptyReply(begun = 0) {
  return { content: "", reasoning: "", calls: [], finish: null, usage: null, explanation: null, unenforced: [], begun, first: null, last: null };
}

/** Adds a chunk, which arrived at `now`, to the reply. */
export function extend(reply, chunk, now) {
  if (chunk.usage) reply.usage = chunk.usage;
  if (chunk.unenforced) reply.unenforced = chunk.unenforced;
  if (chunk.cache_explanation) reply.explanation = chunk.cache_explanation;
  for (const choice of chunk.choices ?? []) {
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    reply.content += delta.content ?? "";
    reply.reasoning += reasoning;
    for (const part of delta.tool_calls ?? []) addCall(reply.calls, part);
    if (choice.finish_reason) reply.finish = choice.finish_reason;
    if (delta.content || reasoning || delta.tool_calls) {
      reply.first ??= now;
      reply.last = now;
    }
  }
  return reply;
}

function addCall(calls, part) {
  calls[part.index] ??= { id: "", name: "", arguments: "" };
  const call = calls[part.index];
  if (part.id) call.id = part.id;
  if (part.function?.name) call.name = part.function.name;
  call.arguments += part.function?.arguments ?? "";
}

/** The reply as a message of the next request. */
export function asMessage(reply) {
  const message = { role: "assistant", content: reply.content };
  if (reply.reasoning) message.reasoning_content = reply.reasoning;
  if (reply.calls.length) {
    message.tool_calls = reply.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}

/** The reply that a node of the tree has kept. */
export function keptReply({ message, usage, explanation, unenforced, finish }) {
  const calls = (message.tool_calls ?? []).map(({ id, function: called }) => ({ id, name: called.name, arguments: called.arguments }));
  const { content, reasoning_content: reasoning = "" } = message;
  return { ...emptyReply(), content, reasoning, calls, usage: usage ?? null, explanation: explanation ?? null, unenforced: unenforced ?? [], finish: finish ?? "stop" };
}

/** Prompt tokens of a reply: how many, how many of them were cached, and the cached share in percent. */
export function cachedShare(usage) {
  const prompt = usage.prompt_tokens;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  return { prompt, cached, percent: prompt ? Math.round((100 * cached) / prompt) : 0 };
}

/** `{tokens, share}`: the tokens that the reply got in a step so far, and the accepted share of its drafts; null without drafts. */
export function draftsOf(usage) {
  const { steps, drafted_tokens: drafted, accepted_tokens: accepted } = usage?.completion_tokens_details ?? {};
  return drafted ? { tokens: 1 + accepted / steps, share: accepted / drafted } : null;
}

/** `{first, rate}`: the time to the first piece in milliseconds, and tokens a second after it; null where unknown. */
export function speedOf({ begun, first, last, usage }) {
  if (first === null) return { first: null, rate: null };
  const tokens = (usage?.completion_tokens ?? 0) - 1;
  return { first: Math.round(first - begun), rate: tokens > 0 && last - first > MIN_TIMED ? (1000 * tokens) / (last - first) : null };
}
