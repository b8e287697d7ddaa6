// The sampling fields of a request: what may stand in their boxes, and what a box without a value means.

const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const MAX_STOPS = 16;

/** `usual` is the value where the server names none, in words. */
export const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, usual: "1", hint: "0 always takes the likeliest token; more is more varied." },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05, usual: "1", hint: "Samples from the likeliest tokens that have this share of the probability." },
  { name: "top_k", label: "Top k", isWhole: true, min: -1, step: 1, usual: "0", hint: "Samples from so many of the likeliest tokens; 0 from all." },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, usual: "0", hint: "Leaves out tokens below this share of the likeliest one's probability." },
  { name: "max_tokens", label: "Max tokens", isWhole: true, min: 1, step: 1, usual: "what fits", hint: "Ends the reply after so many tokens." },
  { name: "seed", label: "Seed", isWhole: true, step: 1, usual: "random", hint: "The same seed gives the same reply, as long as the model computes the same numbers." },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.05, usual: "1", hint: "Above 1: tokens of the prompt and the reply become less likely." },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, usual: "0", hint: "Above 0: tokens that the reply has become less likely." },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, usual: "0", hint: "Above 0: tokens become less likely with each time that the reply has them." },
  { name: "reasoning_effort", label: "Reasoning effort", kind: "choice", choices: EFFORTS, usual: "model's default", hint: "For models that reason." },
  { name: "stop", label: "Stop texts", kind: "lines", usual: "none", hint: "One on each line; \\n is a line break. The reply ends before any of them." },
  { name: "cache_salt", label: "Cache salt", kind: "text", usual: "none", hint: "Prompts share cached text only with prompts of the same salt." },
  { name: "cache_prompt", label: "Cached text", kind: "choice", choices: ["false"], names: { false: "is not used" }, usual: "is used", hint: "Whether the prompt may begin with text that the cache has." },
  { name: "speculate", label: "Drafts", isWhole: true, min: 0, max: 15, step: 1, usual: "what the server allows", hint: "Guesses at most so many tokens in a step; 0 none. The reply stays the same." },
];

/** The value in a field's box: `{value}`, `{error}`, or neither if it is empty. */
export function readField(field, text) {
  if (!text.trim()) return {};
  if (field.kind === "text") return { value: text.trim() };
  if (field.kind === "choice") return { value: field.name === "cache_prompt" ? text === "true" : text };
  if (field.kind === "lines") return readLines(field, text);
  const value = Number(text);
  if (!Number.isFinite(value) || (field.isWhole && !Number.isInteger(value))) return { error: `${field.label}: ${text.trim()} is no ${field.isWhole ? "whole number" : "number"}.` };
  if (value < (field.min ?? -Infinity) || value > (field.max ?? Infinity)) {
    return { error: `${field.label}: ${text.trim()} must be ${field.max === undefined ? `at least ${field.min}` : `between ${field.min} and ${field.max}`}.` };
  }
  return { value };
}

function readLines(field, text) {
  const value = text.split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n"));
  if (value.length > MAX_STOPS) return { error: `${field.label}: there are ${value.length}, but at most ${MAX_STOPS} are allowed.` };
  return { value };
}

/** What stands in a field's box for a value. */
export function fieldText(field, value) {
  if (value === undefined || value === null) return "";
  if (field.kind === "lines") return [value].flat().map((each) => String(each).replaceAll("\n", "\\n")).join("\n");
  return String(value);
}

/** What a field without a value has, in words. `sampling` are the server's values: the model's own, or llama.cpp's for a GGUF file without them. */
export function defaultText(field, sampling) {
  const own = sampling?.[field.name];
  if (own !== undefined) return `${Number(own.toPrecision(6))} (the server's)`;
  return field.usual;
}
