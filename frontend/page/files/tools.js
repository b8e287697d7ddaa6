// The tools of a request, written as JSON. A tool may have a `mock`, the result that the page gives to its calls by itself.

/** The tools in `text`: `{tools, mocks}` with the mocks by their tools' names, `{error}`, or neither if the text is empty. A bare function gets its wrapper. */
export function readTools(text) {
  if (!text.trim()) return {};
  let given;
  try {
    given = JSON.parse(text);
  } catch (error) {
    return { error: `Not JSON yet: ${error.message}` };
  }
  const mocks = {};
  const tools = [given].flat().map((tool) => {
    const { mock, ...rest } = tool ?? {};
    const { mock: inner, ...bare } = rest.type === "function" ? (rest.function ?? {}) : rest;
    const result = mock ?? inner;
    if (result !== undefined) mocks[bare.name] = mockText(result);
    return rest.type === "function" ? { ...rest, function: bare } : { type: "function", function: bare };
  });
  const nameless = tools.findIndex((tool) => typeof tool.function.name !== "string" || !tool.function.name);
  if (nameless >= 0) return { error: `Tool ${nameless + 1} has no name: write {"name": …, "parameters": …}.` };
  return { tools, mocks };
}

function mockText(mock) {
  return typeof mock === "string" ? mock : JSON.stringify(mock);
}

/** A row `{name, description, parameters, mock}` for each tool in `text`; null if it can't be read. `mock` is a text, "" for none. */
export function toolRows(text) {
  const { tools, mocks, error } = readTools(text);
  if (error) return null;
  return (tools ?? []).map(({ function: { name, description, parameters } }) => ({
    name,
    description: description ?? "",
    parameters: parameters ?? { type: "object", properties: {} },
    mock: mocks[name] ?? "",
  }));
}

/** The text with changes to tool number `index`; further tools are added. */
export function changeTool(text, index, changes) {
  const given = text.trim() ? [JSON.parse(text)].flat() : [];
  const { function: inner, type: _, ...rest } = given[index]?.type === "function" ? given[index] : { function: given[index] ?? {} };
  const tool = { ...inner, ...rest, ...changes };
  for (const name of ["mock", "description"]) if (tool[name] === "") delete tool[name];
  given[index] = tool;
  return JSON.stringify(given, null, 2);
}

export function removeTool(text, index) {
  const given = [JSON.parse(text)].flat().toSpliced(index, 1);
  return given.length ? JSON.stringify(given, null, 2) : "";
}
