// Charts over time, drawn by uPlot.
import { element } from "./dom.js";

const HEIGHT = 170; // pixels
const DOT = 5; // pixels, of a value without neighbours
const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)); // steps of an axis

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { timeStyle: "short" });
}

/** A chart of some `series`, each `{label, colour}`; the colours are names of the page's CSS variables. */
export class Plot {
  #rows = []; // times in seconds, then the values of each series
  #chart = null;
  #minutes = 5;

  /**
   * `format` writes a value; `stacked` series are drawn on top of each other; `most` is the fixed end of the axis.
   * `isWhole`: the values are whole numbers. `hidesZero`: the line below the chart leaves out zeros. An `isOptional`
   * chart is hidden while all values are zero.
   */
  constructor(container, { title, series, format, stacked = false, most = null, isWhole = false, hidesZero = false, isOptional = false }) {
    Object.assign(this, { series, format, stacked, most, isWhole, hidesZero, isOptional });
    this.#rows = [[], ...series.map(() => [])];
    this.place = element("div", { class: "plot-area" });
    this.values = element("p", { class: "plot-values" });
    this.figure = element("figure", { class: "plot", hidden: isOptional }, element("figcaption", {}, title), this.place, this.values);
    container.append(this.figure);
    new ResizeObserver(() => this.#resize()).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#create());
  }

  /** Shows the last `minutes` of `rows`: times in seconds, then the values of each series, null where one is unknown. */
  show(rows, minutes) {
    this.#rows = rows;
    this.#minutes = minutes;
    const values = rows.slice(1).map((row) => row.at(-1) ?? null);
    this.figure.hidden = this.isOptional && rows.slice(1).every((row) => row.every((value) => !value));
    const shown = this.series.map((each, index) => ({ ...each, value: values[index] })).filter(({ value }) => !this.hidesZero || value);
    this.values.replaceChildren(
      ...shown.map(({ label, colour, value }) =>
        element("span", {}, element("span", { class: `swatch ${colour}` }), `${label} ${value === null ? "–" : this.format(value)}`),
      ),
      shown.length ? "" : "none",
    );
    if (this.#chart) this.#chart.setData(this.#data());
    else this.#create();
  }

  #data() {
    if (!this.stacked) return this.#rows;
    const [times, ...rows] = this.#rows;
    const sums = times.map(() => 0);
    const stacked = rows.map((row) => row.map((value, index) => (sums[index] += value ?? 0)));
    return [times, ...stacked.reverse()]; // the highest sum is drawn first
  }

  #create() {
    const width = this.place.clientWidth;
    if (!width || !this.#rows[0].length) return;
    this.#chart?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const drawn = this.stacked ? [...this.series].reverse() : this.series;
    const lines = drawn.map((each) => ({
      label: each.label,
      stroke: colour(each.colour),
      fill: this.stacked ? colour(each.colour) : undefined,
      width: this.stacked ? 0 : 2,
      spanGaps: false,
      points: { show: false, size: DOT, fill: colour(each.colour), filter: (chart, row) => (this.stacked ? null : singlePoints(chart.data[row])) },
    }));
    const axis = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const options = {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { range: (_, __, newest) => [newest - 60 * this.#minutes, newest] }, y: { range: (_, least, most) => [0, this.most ?? (Math.max(most ?? 0, 0) * 1.1 || 1)] } },
      series: [{}, ...lines],
      axes: [{ ...axis, size: 28, space: 80, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 58, ...(this.isWhole ? { incrs: WHOLE } : {}), values: (_, ticks) => ticks.map(this.format) }],
    };
    this.#chart = new globalThis.uPlot(options, this.#data(), this.place);
  }

  #resize() {
    if (this.#chart && this.place.clientWidth) this.#chart.setSize({ width: this.place.clientWidth, height: HEIGHT });
    else this.#create();
  }
}

/** The indices of the values between two gaps, of which no line can be drawn; null if there are none. */
export function singlePoints(values) {
  const found = [...values.keys()].filter((index) => isNumber(values[index]) && !isNumber(values[index - 1]) && !isNumber(values[index + 1]));
  return found.length ? found : null;
}

const isNumber = (value) => typeof value === "number";
