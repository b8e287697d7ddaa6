// What an empty chat shows: the model, and examples, which fill the boxes and send nothing.
import { count, element, icon } from "./dom.js";

const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
const PROFILE = {
  name: "read_profile",
  description: "A user's profile, in the user's own words.",
  parameters: { type: "object", properties: { user: { enum: ["ada"] } }, required: ["user"], additionalProperties: false },
  mock: "My name is Ada. I live in Oslo.",
};
const DOCUMENT = `Ada Meyer works as a baker. Ada Meyer lives in Oslo and plays the violin.
The company Norfish was founded in 1962. It has 40 employees.
`;
const DEVICES = { cpu: "on the CPU", cuda: "on a GPU" };

/** `card` is what the server says of the model, if it has; `willLoad` says that a message loads it; `onExample` gets the chosen example. */
export function startScreen(card, willLoad, onExample) {
  const examples = examplesFor(card).map((example) =>
    element(
      "button",
      { type: "button", class: "example", onclick: () => onExample(example) },
      icon(example.icon),
      element("span", { class: "title" }, example.title),
      element("span", { class: "faint" }, example.text),
    ),
  );
  return element(
    "section",
    { class: "start", "aria-label": "The model" },
    element("h2", {}, card?.id ?? "Arbora"),
    element("p", { class: "facts" }, factsOf(card, willLoad)),
    card?.is_builtin ? element("p", { class: "faint" }, BUILTIN) : null,
    element("div", { class: "examples", role: "group", "aria-label": "Examples" }, ...examples),
  );
}

const BUILTIN =
  "A demonstration with 3.7 million parameters. It knows nothing about the world: it remembers what you tell it, " +
  "answers from a document and fills in JSON.";

function factsOf(card, willLoad) {
  if (!card) return "The server has not answered yet.";
  if (willLoad) return "This model is not loaded: your first message loads it.";
  if (!card.max_model_len) return "The model is starting …";
  return [`${count(card.max_model_len)} tokens of context`, DEVICES[card.device] ?? card.device, card.parent && `an adapter of ${card.parent}`].filter(Boolean).join(" · ");
}

/** The next message of an example below its reply; nothing if the branch `path` has gone on or has no example. `onChoose` gets the message. */
export function offerFollowUp(path, onChoose) {
  const { followUp } = path.findLast(({ message }) => message.role === "user") ?? {};
  if (!followUp || path.at(-1).message.role !== "assistant") return [];
  const { note, message } = followUp;
  const choose = element("button", { type: "button", onclick: () => onChoose(message) }, message);
  return [element("p", { class: "note follow-up" }, note, choose)];
}

/** `{title, text, icon, message, documents, settings, followUp}`; `settings` are those that the example changes. */
function examplesFor(card) {
  const isBuiltin = Boolean(card?.is_builtin);
  return [
    {
      icon: "chat",
      title: "Chat",
      text: isBuiltin ? "Tell it a fact, then ask for it." : "Ask a question.",
      message: isBuiltin ? "My name is Ada." : "Why is the sky blue? Answer in two sentences.",
      followUp: isBuiltin ? { note: "Now ask for what you told it:", message: "What is my name?" } : undefined,
    },
    {
      icon: "document",
      title: "Document",
      text: "Ask twice: the second time the document is cached.",
      message: "When was Norfish founded?",
      documents: [{ name: "people.txt", text: DOCUMENT }],
      followUp: {
        note: "The document is in the cache now. Ask a second question: the line under its reply says how much of the prompt came from there.",
        message: "What is Ada Meyer's job?",
      },
    },
    {
      icon: "braces",
      title: "JSON",
      text: "A reply that fits a schema.",
      message: `Extract the data as JSON.\nSchema: ${JSON.stringify(PERSON)}\nSentence: Ada is 36 years old.`,
      settings: { schema: JSON.stringify(PERSON, null, 2) },
    },
    {
      icon: "tool",
      title: "Tool",
      text: `A call, answered by a mock value. ${noteOnCalls(card)}`,
      message: "Read the profile of the user ada.",
      settings: { tools: JSON.stringify([PROFILE], null, 2), mustCall: true },
    },
  ];
}

/** What stands against calls of the model. */
function noteOnCalls(card) {
  if (card?.is_builtin) return "It is forced: this model was not trained to call.";
  return card?.template_has_tools === false ? "This model's chat template has no tools, so its calls may be wrong." : "";
}
