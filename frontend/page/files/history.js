// The samples of GET /server/history, as they arrive piece by piece.

export class History {
  #times = [];
  #series = {};

  /** Keeps the samples of the last `minutes`. */
  constructor(minutes) {
    this.minutes = minutes;
  }

  /** The path that answers with the samples after the last one. */
  get path() {
    return `server/history?minutes=${this.minutes}&after=${this.newest ?? 0}`;
  }

  /** The time of the last sample, in seconds since 1970; undefined without one. */
  get newest() {
    return this.#times.at(-1);
  }

  /** Adds the samples of an answer that are newer than the last one: two requests at the same time get the same samples. Returns whether there were any. */
  add({ times, series }) {
    const first = times.findIndex((time) => time > (this.newest ?? -Infinity));
    if (first < 0) return false;
    this.#times = [...this.#times, ...times.slice(first)];
    const old = this.#times.findIndex((time) => time > this.newest - 60 * this.minutes);
    this.#times = this.#times.slice(old);
    for (const [name, values] of Object.entries(series)) {
      this.#series[name] = [...(this.#series[name] ?? []), ...values.slice(first)].slice(-this.#times.length);
    }
    return true;
  }

  /** The times, then the values of each of the series `names`, multiplied by `factor`; null where unknown. */
  rows(names, factor = 1) {
    const scale = (value) => (value === null ? null : value * factor);
    return [this.#times, ...names.map((name) => (this.#series[name] ?? []).map(scale))];
  }

  /** The last value of a series; null if it is unknown. */
  latest(name) {
    return this.#series[name]?.at(-1) ?? null;
  }
}
