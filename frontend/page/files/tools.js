// The tools of a request, written as JSON. A tool may have a `mock`, the result that the page gives to its calls by itself.

/** The tools in `text`: `{tools, mocks}` with the mocks by their tools' names, `{error}`, or neither if the text is empty. A bare function gets its wrapper. */
export function readTools(text) {
  if (!text.trim()) return {};
  let split;
  try {
    split = splitTools(text);
  } catch (error) {
    return { error: `Not JSON yet: ${error.message}` };
  }
  const nameless = split.findIndex(({ tool }) => typeof tool.function.name !== "string" || !tool.function.name);
  if (nameless >= 0) return { error: `Tool ${nameless + 1} has no name: write {"name": …, "parameters": …}.` };
  const mocks = split.filter(({ mock }) => mock !== "").map(({ tool, mock }) => [tool.function.name, mock]);
  return { tools: split.map(({ tool }) => tool), mocks: Object.fromEntries(mocks) };
}

/** `{tool, mock}` for each tool in `text`; the mock is a text, "" for none. Throws if the text is not JSON. */
function splitTools(text) {
  const given = text.trim() ? [JSON.parse(text)].flat() : [];
  return given.map((each) => {
    const { mock: outer, ...rest } = each ?? {};
    const { mock: inner, ...bare } = rest.type === "function" ? (rest.function ?? {}) : rest;
    const mock = outer ?? inner ?? "";
    const tool = rest.type === "function" ? { ...rest, function: bare } : { type: "function", function: bare };
    return { tool, mock: typeof mock === "string" ? mock : JSON.stringify(mock) };
  });
}

/** A row `{name, description, parameters, mock}` for each tool in `text`, "" for what it lacks; null if the text is not JSON. */
export function toolRows(text) {
  try {
    return splitTools(text).map(({ tool, mock }) => {
      const { name = "", description = "", parameters = { type: "object", properties: {} } } = tool.function;
      return { name, description, parameters, mock };
    });
  } catch {
    return null;
  }
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
