// The operators' view: numbers and plots from /metrics and /cache.
import { getJson, getText } from "./api.js";
import { byId, count, decimal, element, size } from "./dom.js";
import { Samples, byLabel, growth, parseMetrics, total } from "./metrics.js";
import { Plot } from "./plots.js";

const WINDOW_SECONDS = 20; // rates and quantiles are of so much time
const KEPT_SECONDS = 300;
const CAUSES = ["new", "short", "evicted", "namespace", "volatile", "tools", "system", "history", "template", "off"];
const milliseconds = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`);
const percent = (part) => `${decimal(part * 100)} %`;
const rate = (value) => `${decimal(value)}/s`;

export class ServerView {
  #samples = new Samples(WINDOW_SECONDS);
  #plots;

  /** `seconds` is the time between two calls of `refresh`. */
  constructor(seconds) {
    const points = Math.round(KEPT_SECONDS / seconds);
    const plot = (title, format, series, more = {}) => new Plot(byId("plots"), { title, format, series, points, ...more });
    const two = (one, other) => [{ label: one, colour: "c1" }, { label: other, colour: "c2" }];
    this.#plots = {
      first: plot("Time to the first token", milliseconds, two("median", "95 %")),
      between: plot("Time between tokens", milliseconds, two("median", "95 %")),
      speed: plot("Tokens a second", rate, [...two("generated", "prompt, computed"), { label: "prompt, cached", colour: "c3" }]),
      hits: plot("Hit rate of prompt tokens", percent, [{ label: "cached", colour: "c1" }], { most: 1 }),
      missed: plot("Missed prompt tokens by cause", rate, CAUSES.map((label, index) => ({ label, colour: `c${index + 1}` })), { stacked: true, hidesZero: true }),
      queue: plot("Requests", count, two("running", "waiting"), { isWhole: true }),
      pages: plot("Pages of the KV cache", count, [
        { label: "used", colour: "c2" },
        { label: "cached", colour: "c1" },
        { label: "free", colour: "c0" },
      ], { stacked: true, isWhole: true }),
    };
  }

  async refresh() {
    const [text, cache] = await Promise.all([getText("metrics"), getJson("cache")]);
    const now = Date.now() / 1000;
    const metrics = parseMetrics(text);
    this.#samples.add(now, metrics);
    this.#plot(now, metrics);
    showTiles(metrics, cache, this.#samples);
    byId("tables").replaceChildren(tiers(cache), shares(cache), protectedPrefixes(cache));
  }

  #plot(now, metrics) {
    const samples = this.#samples;
    const cached = samples.grown("arbora_prompt_tokens_cached_total");
    const lookedUp = samples.grown("arbora_prompt_tokens_looked_up_total");
    const both = (name) => [samples.quantile(name, 0.5), samples.quantile(name, 0.95)];
    const gauge = (name) => total(metrics, name);
    this.#plots.first.add(now, both("arbora_time_to_first_token_seconds"));
    this.#plots.between.add(now, both("arbora_inter_token_latency_seconds"));
    this.#plots.speed.add(now, ["output_tokens", "prompt_tokens_computed", "prompt_tokens_cached"].map((name) => samples.rate(`arbora_${name}_total`)));
    this.#plots.hits.add(now, [lookedUp ? cached / lookedUp : null]);
    this.#plots.missed.add(now, this.#causes());
    this.#plots.queue.add(now, [gauge("arbora_requests_running"), gauge("arbora_requests_waiting")]);
    this.#plots.pages.add(now, ["used", "cached", "free"].map((name) => gauge(`arbora_kv_pages_${name}`)));
  }

  /** Missed tokens a second by cause. */
  #causes() {
    const { oldest, newest } = this.#samples;
    const [before, after] = [oldest, newest].map(({ metrics }) => byLabel(metrics, "arbora_prompt_tokens_missed_total", "cause"));
    const time = newest.time - oldest.time;
    return CAUSES.map((cause) => (time ? growth(before[cause] ?? 0, after[cause] ?? 0) / time : null));
  }
}

function showTiles(metrics, cache, samples) {
  const cached = total(metrics, "arbora_prompt_tokens_cached_total");
  const prompt = total(metrics, "arbora_prompt_tokens_looked_up_total");
  const { used, cached: held, total: all } = cache.sizes;
  const speed = samples.rate("arbora_output_tokens_total");
  const tiles = [
    ["Hit rate", prompt ? percent(cached / prompt) : "–", `${count(cached)} of ${count(prompt)} prompt tokens`],
    ["Running", count(total(metrics, "arbora_requests_running")), `${count(total(metrics, "arbora_requests_waiting"))} waiting`],
    ["Generated", speed === null ? "–" : rate(speed), `${count(total(metrics, "arbora_output_tokens_total"))} tokens in all`],
    ["KV cache", percent((used.pages + held.pages) / Math.max(1, all.pages)), `${count(used.pages + held.pages)} of ${count(all.pages)} pages, ${size(all.bytes)}`],
    ["Evicted", count(cache.evicted_pages), "pages"],
    ["Protected", count(cache.sizes.pinned.pages + cache.sizes.leased.pages), `${count(cache.sizes.pinned.pages)} pinned, ${count(cache.sizes.leased.pages)} leased pages`],
  ];
  byId("tiles").replaceChildren(
    ...tiles.map(([name, value, more]) => element("div", {}, element("dt", {}, name), element("dd", {}, value), element("dd", { class: "more" }, more))),
  );
}

function table(caption, head, rows) {
  const cells = (values, tag) => values.map((value) => element(tag, {}, value));
  const body = rows.length ? rows.map((row) => element("tr", {}, ...cells(row, "td"))) : [element("tr", {}, element("td", { colspan: head.length }, "none"))];
  return element(
    "div",
    { class: "wide" },
    element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...cells(head, "th"))), element("tbody", {}, ...body)),
  );
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
