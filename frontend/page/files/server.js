// The operators' view: the server's state, requests, plots of the last hour, and what the cache holds.
import { getJson } from "./api.js";
import { byId, count, decimal, draftsText, element, plural, size } from "./dom.js";
import { History } from "./history.js";
import { cacheQuery, isUnloaded } from "./models.js";
import { Plot } from "./plots.js";
import { RequestsView, duration } from "./requests.js";
import { choiceButtons, table } from "./tables.js";

const MINUTES = [5, 15, 60];
const CAUSES = ["new", "short", "checkpoint", "evicted", "namespace", "volatile", "tools", "system", "history", "template", "off"];
const ERRORS = ["400", "401", "404", "429", "4xx", "500", "503", "5xx"];
const DEVICES = { cpu: "CPU", cuda: "GPU" };
const latency = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`);
const percent = (part) => `${decimal(part * 100)} %`;
const rate = (value) => `${decimal(value)}/s`;
const perMinute = (value) => `${decimal(value)}/min`;

/** `[label, name of the series]` for each line of a plot; colours follow their order. */
const PLOTS = [
  { title: "Time to the first token", format: latency, lines: [["median", "first_token_p50"], ["95 %", "first_token_p95"]] },
  { title: "Time between tokens", format: latency, lines: [["median", "between_tokens_p50"], ["95 %", "between_tokens_p95"]] },
  {
    title: "Tokens a second",
    format: rate,
    lines: [["generated", "output_tokens"], ["prompt, computed", "prompt_tokens_computed"], ["prompt, cached", "prompt_tokens_cached"]],
  },
  { title: "Hit rate of prompt tokens", format: percent, lines: [["cached", "hit_rate"]], most: 1 },
  { title: "Missed prompt tokens by cause", format: rate, lines: CAUSES.map((cause) => [cause, `missed_${cause}`]), stacked: true, hidesZero: true },
  { title: "Requests", format: count, lines: [["running", "requests_running"], ["waiting", "requests_waiting"]], isWhole: true },
  { title: "Errors by status", format: perMinute, factor: 60, lines: ERRORS.map((status) => [status.replace("xx", "xx, others"), `errors_${status}`]), stacked: true, hidesZero: true },
  {
    title: "Pages of the KV cache",
    format: count,
    lines: [["locked by requests", "pages_locked"], ["pinned", "pages_pinned"], ["cached", "pages_cached"], ["free", "pages_free"]],
    colours: ["c2", "c3", "c1", "c0"],
    stacked: true,
    isWhole: true,
  },
  { title: "Pages in other tiers", format: count, lines: [["host memory", "pages_host"], ["disk", "pages_disk"]], isWhole: true, isOptional: true },
];

export class ServerView {
  #requests = new RequestsView();
  #history = new History(MINUTES[0]);
  #plots;

  constructor() {
    this.#plots = PLOTS.map(({ lines, colours, ...options }) => {
      const series = lines.map(([label], index) => ({ label, colour: colours?.[index] ?? `c${index + 1}` }));
      return new Plot(byId("plots"), { series, ...options });
    });
    const options = MINUTES.map((value) => ({ value, label: `${value} min` }));
    choiceButtons(byId("minutes"), options, MINUTES[0], (minutes) => {
      this.#history = new History(minutes);
      this.#loadHistory().catch(() => {}); // the next refresh says what is wrong
    });
  }

  /** Shows the state also while no model answers; then the cache is unknown, and the server's error is thrown. */
  async refresh() {
    const [status, requests] = await Promise.all([getJson("server"), getJson("server/requests"), this.#loadHistory()]);
    showStatus(status);
    this.#requests.show(requests);
    if (isUnloaded()) {
      byId("tiles").replaceChildren();
      byId("tables").replaceChildren(element("p", { class: "hint" }, "The chosen model is not loaded, so it has no cache."));
      return;
    }
    const cache = await getJson(`cache${cacheQuery()}`);
    showTiles(cache, requests, this.#history);
    byId("tables").replaceChildren(layers(status), tiers(cache), shares(cache), protectedPrefixes(cache));
  }

  async #loadHistory() {
    const history = this.#history;
    const answer = await getJson(history.path);
    if (history !== this.#history || !history.add(answer)) return;
    PLOTS.forEach(({ lines, factor }, index) => this.#plots[index].show(history.rows(lines.map(([, name]) => name), factor), history.minutes));
  }
}

function showStatus(status) {
  const { state, model, names, adapters, models = [], version, device, uptime_s: uptime, max_model_len: context, http_processes: processes } = status;
  byId("server-title").textContent = model;
  const mark = byId("server-state");
  if (mark.textContent !== state) mark.textContent = state; // a screen reader says each change
  mark.className = state === "ready" ? "mark good" : "mark bad";
  const facts = [
    ["Device", DEVICES[device] ?? device],
    ["Context", context === null ? "–" : `${count(context)} tokens`],
    ["Up for", duration(uptime)],
    ["Version", version],
    ["HTTP processes", count(processes)],
    ["Adapters", adapters.join(", ") || "none"],
    ...(models.length > 1 ? [["Models", models.map((each) => `${each.name} (${each.state})`).join(", ")]] : []),
    ...(names.length > 1 ? [["Other names", names.slice(1).join(", ")]] : []),
  ];
  byId("facts").replaceChildren(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function showTiles(cache, requests, history) {
  const { used, cached: held, total: all, pinned, leased } = cache.sizes;
  const rateOf = cache.recent_hit_rate;
  const waiting = history.latest("requests_waiting");
  const speed = history.latest("output_tokens");
  const [tokens, share] = [history.latest("tokens_a_step"), history.latest("drafts_accepted")];
  const drafts = tokens === null ? "" : `; ${draftsText({ tokens, share })}`;
  const tiles = [
    ["Open requests", requests.open_total === null ? "–" : count(requests.open_total), `${waiting === null ? "–" : count(waiting)} waiting`],
    ...(rateOf ? [["Hit rate", rateOf.rate === null ? "–" : percent(rateOf.rate), `of the last ${plural(rateOf.requests, "request")}`]] : []),
    ["Generated", speed === null ? "–" : rate(speed), `tokens, of the last 20 seconds${drafts}`],
    ["KV cache", percent((used.pages + held.pages) / Math.max(1, all.pages)), `${count(used.pages + held.pages)} of ${count(all.pages)} pages, ${size(all.bytes)}`],
    ["Evicted", count(cache.evicted_pages), "pages"],
    ["Protected", count(pinned.pages + leased.pages), `${count(pinned.pages)} pinned, ${count(leased.pages)} leased pages`],
  ];
  byId("tiles").replaceChildren(
    ...tiles.map(([name, value, more]) => element("div", {}, element("dt", {}, name), element("dd", {}, value), element("dd", { class: "more" }, more))),
  );
}

function layers({ pages }) {
  const rows = (pages ?? []).map((group) => [
    plural(group.layers, "layer"),
    group.reach === null ? "all tokens" : `the last ${count(group.reach)} tokens`,
    ...[group.free, group.cached, group.used, group.total].map(count),
  ]);
  return table("Pages by layers", ["layers", "that see", "free", "cached", "locked", "total"], rows);
}

function tiers({ sizes, tiers: { host, disk, remote_found } }) {
  const rows = [
    ["device", count(sizes.used.pages + sizes.cached.pages), size(sizes.used.bytes + sizes.cached.bytes), "–"],
    ["host memory", count(host.pages), size(host.bytes), count(host.found)],
    ["disk", count(disk.pages), size(disk.bytes), count(disk.found)],
    ["remote", "–", "–", count(remote_found)],
  ];
  return table("Tiers", ["tier", "pages", "size", "pages found by prompts"], rows);
}

function shares({ namespaces }) {
  const rows = namespaces.slice(0, 10).map((each) => [each.own ? "this one" : each.namespace, count(each.size.pages), size(each.size.bytes)]);
  return table("Largest namespaces", ["namespace", "pages", "size"], rows);
}

function protectedPrefixes({ pins, leases }) {
  const until = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
  const rows = [
    ...pins.map((pin) => ["pin", `${pin.id.slice(0, 12)}…`, count(pin.tokens), until(pin.expires_at)]),
    ...leases.map((lease) => [lease.kind, lease.key, count(lease.tokens), until(lease.ends_at)]),
  ];
  return table("Pins and leases", ["kind", "id or key", "tokens", "until"], rows.slice(0, 20));
}
