// The requests of GET /server/requests: open ones, the last ones, and those that failed.
import { byId, count, decimal, element } from "./dom.js";
import { choiceButtons, table } from "./tables.js";

const FEW = 10; // requests that are shown before "Show all"
const KINDS = [
  { value: "recent", label: "Last" },
  { value: "failed", label: "Failed" },
];
const CAPTIONS = { recent: "Last requests, the newest first", failed: "Failed requests, the newest first" };
const OPEN_HEAD = ["request", "state", "age", "prompt", "cached", "output"];
const RECENT_HEAD = ["time", "path", "status", "prompt", "cached", "output", "first token", "tokens/s", "took", "finish", "key"];
const FAILED_HEAD = ["time", "status", "code", "reason", "path", "key"];
const UNKNOWN = "–";

/** A duration in words, such as "85 ms", "3.2 s", "2 min 5 s". */
export function duration(seconds) {
  if (seconds === undefined || seconds === null) return UNKNOWN;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${decimal(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(seconds / 3600);
  return hours < 48 ? `${hours} h ${Math.floor((seconds % 3600) / 60)} min` : `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

const number = (value) => (value === undefined || value === null ? UNKNOWN : count(value));

/** The cells of an open request. A prefill says how much of the prompt is ready. */
export function openCells(request) {
  const ready = Math.floor((100 * request.ready_tokens) / Math.max(1, request.prompt_tokens));
  const state = request.state === "prefill" ? `prefill, ${ready} %` : request.state;
  return [request.id, state, duration(request.age_s), number(request.prompt_tokens), number(request.cached_tokens), number(request.output_tokens)];
}

/** The cells of a request that has ended; `clock` writes a time. */
export function recentCells(record, clock) {
  const speed = record.tokens_per_s === undefined ? UNKNOWN : decimal(record.tokens_per_s);
  const finish = [...new Set(record.finish ?? [])].join(", ") || record.code || UNKNOWN;
  return [
    clock(record.ended_at),
    `${record.method} ${record.path}`,
    String(record.status ?? UNKNOWN),
    number(record.prompt_tokens),
    number(record.cached_tokens),
    number(record.output_tokens),
    duration(record.first_token_s),
    speed,
    duration(record.total_s),
    record.client === "gone" ? `${finish} (client gone)` : finish,
    record.key ?? UNKNOWN,
  ];
}

/** The cells of a failed request. */
export function failedCells(record, clock) {
  const { status, code, reason, method, path, key } = record;
  return [clock(record.ended_at), String(status ?? UNKNOWN), code ?? UNKNOWN, reason ?? UNKNOWN, `${method} ${path}`, key ?? UNKNOWN];
}

/** The cells without the last column, the key's name, if no record has one. */
export function withoutKeys(head, rows) {
  const hasKeys = rows.some((row) => row.at(-1) !== UNKNOWN);
  return hasKeys ? [head, rows] : [head.slice(0, -1), rows.map((row) => row.slice(0, -1))];
}

const clockOf = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

export class RequestsView {
  #kind = "recent";
  #isLong = false;
  #last = null;
  #drawn = ""; // what the tables show, so that unchanged ones keep their place and the focus

  constructor() {
    choiceButtons(byId("request-kinds"), KINDS, this.#kind, (kind) => {
      this.#kind = kind;
      this.#draw();
    });
  }

  show(requests) {
    this.#last = requests;
    this.#draw();
  }

  #draw() {
    if (!this.#last) return;
    const drawn = JSON.stringify([this.#last, this.#kind, this.#isLong]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const { open, open_total: total } = this.#last;
    const caption = open === null ? "Open now: the model does not answer" : `Open now: ${count(total)}`;
    replaceTable(byId("open-requests"), table(caption, OPEN_HEAD, (open ?? []).map(openCells)));
    const records = this.#last[this.#kind];
    const shown = this.#isLong ? records : records.slice(0, FEW);
    const isFailed = this.#kind === "failed";
    const cells = shown.map((record) => (isFailed ? failedCells : recentCells)(record, clockOf));
    byId("ended-requests").className = this.#kind;
    replaceTable(byId("ended-requests"), table(CAPTIONS[this.#kind], ...withoutKeys(isFailed ? FAILED_HEAD : RECENT_HEAD, cells)));
    byId("more-requests").replaceChildren(records.length > FEW ? this.#moreButton(records.length) : "");
  }

  #moreButton(all) {
    const toggle = () => {
      this.#isLong = !this.#isLong;
      this.#draw();
      byId("more-requests").querySelector("button")?.focus();
    };
    return element("button", { type: "button", class: "quiet", onclick: toggle }, this.#isLong ? "Show fewer" : `Show all ${count(all)}`);
  }
}

/** Shows another state of a table, which stays scrolled and focused as it was. */
function replaceTable(place, made) {
  const region = place.firstElementChild;
  if (!region) return place.replaceChildren(made);
  region.setAttribute("aria-label", made.getAttribute("aria-label"));
  region.replaceChildren(...made.children);
}
