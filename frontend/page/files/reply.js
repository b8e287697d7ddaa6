// A reply that grows by the chunks of a stream of /v1/chat/completions.

export function emptyReply() {
  return { content: "", reasoning: "", calls: [], finish: null, usage: null, explanation: null, unenforced: [] };
}

/** Adds a chunk to the reply. */
export function extend(reply, chunk) {
  if (chunk.usage) reply.usage = chunk.usage;
  if (chunk.unenforced) reply.unenforced = chunk.unenforced;
  if (chunk.cache_explanation) reply.explanation = chunk.cache_explanation;
  for (const choice of chunk.choices ?? []) {
    const delta = choice.delta ?? {};
    reply.content += delta.content ?? "";
    reply.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    for (const part of delta.tool_calls ?? []) addCall(reply.calls, part);
    if (choice.finish_reason) reply.finish = choice.finish_reason;
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

/** Prompt tokens of a reply: how many, how many of them were cached, and the cached share in percent. */
export function cachedShare(usage) {
  const prompt = usage.prompt_tokens;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  return { prompt, cached, percent: prompt ? Math.round((100 * cached) / prompt) : 0 };
}
