// What an empty chat shows: the model, and examples, which fill the boxes and send nothing.
import { count, element, icon } from "./dom.js";

const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
const WEATHER = {
  name: "weather",
  description: "The weather in a city.",
  parameters: { type: "object", properties: { city: { enum: ["Oslo", "Rome"] } }, required: ["city"] },
  mock: "Rain, 12 degrees.",
};
const DOCUMENT = `Ada Meyer works as a baker. Ada Meyer lives in Oslo and plays the violin.
The company Norfish was founded in 1962. It has 40 employees.
`;
const DEVICES = { cpu: "on the CPU", cuda: "on a GPU" };

/** `card` is what the server says of the model, if it has; `onExample` gets the chosen example. */
export function startScreen(card, onExample) {
  const examples = examplesFor(Boolean(card?.is_builtin)).map((example) =>
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
    element("p", { class: "facts" }, factsOf(card)),
    card?.is_builtin ? element("p", { class: "faint" }, BUILTIN) : null,
    element("div", { class: "examples", role: "group", "aria-label": "Examples" }, ...examples),
  );
}

const BUILTIN =
  "A demonstration with 3.7 million parameters. It knows nothing about the world: it remembers what you tell it, " +
  "answers from a document and fills in JSON.";

function factsOf(card) {
  if (!card) return "The server has not answered yet.";
  if (!card.max_model_len) return "The model is starting …";
  return [`${count(card.max_model_len)} tokens of context`, DEVICES[card.device] ?? card.device, card.parent && `an adapter of ${card.parent}`].filter(Boolean).join(" · ");
}

/** `{title, text, icon, message, documents, settings}`; `settings` are those that the example changes. */
function examplesFor(isBuiltin) {
  return [
    {
      icon: "chat",
      title: "Chat",
      text: isBuiltin ? "Tell it a fact, then ask for it." : "Ask a question.",
      message: isBuiltin ? "My name is Ada." : "Why is the sky blue? Answer in two sentences.",
    },
    {
      icon: "document",
      title: "Document",
      text: "Ask twice: the second time the document is cached.",
      message: "When was Norfish founded?",
      documents: [{ name: "people.txt", text: DOCUMENT }],
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
      text: isBuiltin ? "A forced call: this model was not trained to call tools." : "A call that a mock value answers.",
      message: "What is the weather in Rome?",
      settings: { tools: JSON.stringify([WEATHER], null, 2), mustCall: true },
    },
  ];
}
