// A chat as a file: what the terminal chat's /save writes, with fields that only this page reads: the title, the tools and all branches.
import { readTree } from "./message_tree.js";
import { FIELDS } from "./sampling.js";

const ROLES = ["user", "assistant", "tool"];

/** The content of the file. `messages` are those of the branch that is shown, without calls and their results. */
export function writeChat({ title, settings, tree }) {
  const messages = tree.path().map(asSent).filter(({ role, content }) => role !== "tool" && content);
  return {
    model: settings.model,
    system: settings.system || null,
    messages: messages.map(({ role, content }) => ({ role, content })),
    settings: settings.sampling,
    schema: parsed(settings.schema),
    title,
    tools: parsed(settings.tools),
    tree: { leaf: tree.leaf, nodes: tree.toJSON().nodes.map(withoutAnswers) },
  };
}

/** The message of a node as a request has it. Documents stand before the question, so that another question about them finds them in the cache. */
export function asSent({ message, documents = [] }) {
  const parts = documents.map(({ name, text }) => `Document ${name}:\n${text.trim()}`);
  return parts.length ? { ...message, content: [...parts, message.content].filter(Boolean).join("\n\n") } : message;
}

function withoutAnswers({ id, parent, chosen, message, documents, usage }) {
  return { id, parent, chosen, message, documents, usage };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** `{title, settings, tree}` of a file's text. Throws an Error that says what is wrong. */
export function readChat(text) {
  const file = parsed(text);
  if (!isObject(file) || !Array.isArray(file.messages)) throw new Error("it is no chat: expected JSON with a list of messages");
  const nodes = file.tree?.nodes ?? file.messages.map((message, index) => ({ id: index + 1, parent: index, message }));
  if (!Array.isArray(nodes)) throw new Error("tree.nodes must be a list");
  const tree = readTree({ leaf: file.tree ? file.tree.leaf : nodes.length, nodes: nodes.map(readNode) });
  return { title: typeof file.title === "string" ? file.title : "", settings: readFileSettings(file), tree };
}

function readNode(node, index) {
  const { message } = isObject(node) ? node : {};
  if (!isObject(message) || !ROLES.includes(message.role) || typeof message.content !== "string") {
    throw new Error(`message ${index + 1} must have a role (${ROLES.join(", ")}) and a text as content`);
  }
  const { id, parent, chosen } = node;
  const read = { id, parent, chosen: chosen ?? null, message: readMessage(message) };
  if (Array.isArray(node.documents)) read.documents = node.documents.filter((each) => isText(each?.name) && isText(each?.text)).map(({ name, text }) => ({ name, text }));
  if (Number.isFinite(node.usage?.prompt_tokens) && Number.isFinite(node.usage.completion_tokens)) read.usage = node.usage;
  return read;
}

function readMessage({ role, content, reasoning_content, tool_calls, tool_call_id }) {
  const message = { role, content };
  if (isText(reasoning_content)) message.reasoning_content = reasoning_content;
  if (isText(tool_call_id)) message.tool_call_id = tool_call_id;
  if (Array.isArray(tool_calls)) {
    const calls = tool_calls.filter((call) => isText(call?.id) && isText(call.function?.name) && isText(call.function.arguments));
    if (calls.length) message.tool_calls = calls;
  }
  return message;
}

function readFileSettings({ model, system, settings, schema, tools }) {
  const known = FIELDS.filter(({ name }) => isObject(settings) && settings[name] !== undefined);
  return {
    model: isText(model) ? model : "",
    system: isText(system) ? system : "",
    sampling: Object.fromEntries(known.map(({ name }) => [name, settings[name]])),
    schema: isObject(schema) ? JSON.stringify(schema, null, 2) : "",
    tools: Array.isArray(tools) && tools.length ? JSON.stringify(tools, null, 2) : "",
  };
}

function isText(value) {
  return typeof value === "string";
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
