// The tools of a request, written as JSON.

/** The tools in `text`: `{tools}`, `{error}`, or neither if the text is empty. A bare function gets its wrapper. */
export function readTools(text) {
  if (!text.trim()) return {};
  let given;
  try {
    given = JSON.parse(text);
  } catch (error) {
    return { error: `Not JSON yet: ${error.message}` };
  }
  const tools = [given].flat().map((tool) => (tool?.type === "function" ? tool : { type: "function", function: tool }));
  const nameless = tools.findIndex((tool) => typeof tool.function?.name !== "string" || !tool.function.name);
  if (nameless >= 0) return { error: `Tool ${nameless + 1} has no name: write {"name": …, "parameters": …}.` };
  return { tools };
}
