// Prometheus' text format, and what a time window of samples says.

/** The samples of an exposition by their names: lists of `{labels, value}`. */
export function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const [, name, labels, value] = match;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels: readLabels(labels ?? ""), value: Number(value.replace("Inf", "Infinity")) });
  }
  return found;
}

function readLabels(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(/([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g)) {
    labels[name] = value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped));
  }
  return labels;
}

/** The sum of a metric's samples; 0 if there are none. */
export function total(metrics, name) {
  return (metrics.get(name) ?? []).reduce((sum, sample) => sum + sample.value, 0);
}

/** A metric's samples by the value of a label. */
export function byLabel(metrics, name, label) {
  return Object.fromEntries((metrics.get(name) ?? []).map(({ labels, value }) => [labels[label], value]));
}

/** How much a counter has grown; a counter that is smaller than before has begun anew. */
export function growth(before, after) {
  return after >= before ? after - before : after;
}

/**
 * The q-quantile of a histogram's observations between two samples, in the histogram's unit; null without any.
 * Within a bucket observations count as evenly spread; the last bucket has no end, so its beginning is returned.
 */
export function quantile(before, after, name, q) {
  const earlier = byLabel(before, `${name}_bucket`, "le");
  const buckets = Object.entries(byLabel(after, `${name}_bucket`, "le"))
    .map(([end, value]) => ({ end: Number(end.replace("Inf", "Infinity")), count: growth(earlier[end] ?? 0, value) }))
    .sort((one, other) => one.end - other.end);
  const wanted = q * (buckets.at(-1)?.count ?? 0);
  if (!wanted) return null;
  let begin = 0;
  let seen = 0;
  for (const { end, count } of buckets) {
    if (count >= wanted) return end === Infinity ? begin : begin + ((end - begin) * (wanted - seen)) / (count - seen);
    begin = end;
    seen = count;
  }
  return begin;
}

/** The samples of the last `seconds`, and the one before them. */
export class Samples {
  #samples = [];

  constructor(seconds) {
    this.seconds = seconds;
  }

  /** `time` is in seconds. */
  add(time, metrics) {
    this.#samples.push({ time, metrics });
    while (this.#samples.length > 1 && this.#samples[1].time <= time - this.seconds) this.#samples.shift();
  }

  get oldest() {
    return this.#samples[0];
  }

  get newest() {
    return this.#samples.at(-1);
  }

  /** Growth of a counter over the window. */
  grown(name) {
    return growth(total(this.oldest.metrics, name), total(this.newest.metrics, name));
  }

  /** Growth a second; null for a single sample. */
  rate(name) {
    const time = this.newest.time - this.oldest.time;
    return time ? this.grown(name) / time : null;
  }

  /** The q-quantile of a histogram over the window; null without observations. */
  quantile(name, q) {
    return quantile(this.oldest.metrics, this.newest.metrics, name, q);
  }
}
