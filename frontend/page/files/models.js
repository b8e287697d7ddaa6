// The models of the server: the list at the top, and what the server says of the chosen one.
import { getJson } from "./api.js";
import { byId, element } from "./dom.js";

let cards = []; // what /v1/models says of each model
let wanted = ""; // the model of a chat that was opened before the list was there

/** Fills the list of models; a list that can't be fetched stays as it is. Resolves to whether the server has started: then a model is loaded, or was. */
export async function fetchModels() {
  cards = (await getJson("v1/models")).data;
  const chosen = byId("model").value || wanted;
  const listed = [...byId("model").options].map((option) => option.value);
  if (JSON.stringify(listed) !== JSON.stringify(cards.map(({ id }) => id))) {
    byId("model").replaceChildren(...cards.map(({ id }) => element("option", { value: id, selected: id === chosen }, id)));
  }
  return cards.some(({ max_model_len: context }) => context);
}

/** Chooses the model of a chat; a model that is not served changes nothing. */
export function chooseModel(model) {
  if (!cards.length) wanted = model;
  else if (cards.some(({ id }) => id === model)) byId("model").value = model;
}

/** What the server says of the chosen model; undefined before it has said so. */
export function modelCard() {
  return cards.find(({ id }) => id === byId("model").value);
}

/** Whether the server has several models, so that each has a cache of its own, and a message loads one. Further names and adapters of a model are none. */
export function hasSeveralModels() {
  return new Set(cards.filter(({ parent }) => !parent).map(({ root }) => root)).size > 1;
}

/** Whether a message would load the chosen model. */
export function isUnloaded() {
  return hasSeveralModels() && modelCard()?.is_loaded === false;
}

/** The query of a path about the cache of the chosen model, with further `fields`; empty ones are left out. */
export function cacheQuery(fields = {}) {
  const model = hasSeveralModels() ? byId("model").value : "";
  const query = new URLSearchParams(Object.entries({ model, ...fields }).filter(([, value]) => value));
  return query.size ? `?${query}` : "";
}
