// Charts over time, drawn by uPlot.
import { element } from "./dom.js";

const HEIGHT = 170; // pixels

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** A chart of some `series`, each `{label, colour}`; the colours are names of the page's CSS variables. */
export class Plot {
  #rows = []; // times in seconds, then the values of each series
  #chart = null;

  /**
   * `format` writes a value; `stacked` series are drawn on top of each other; `most` is the fixed end of the axis.
   * `isWhole`: the values are whole numbers. `hidesZero`: the line below the chart leaves out zeros.
   */
  constructor(container, { title, series, format, points, stacked = false, most = null, isWhole = false, hidesZero = false }) {
    Object.assign(this, { series, format, points, stacked, most, isWhole, hidesZero });
    this.#rows = [[], ...series.map(() => [])];
    this.place = element("div", { class: "plot-area" });
    this.values = element("p", { class: "plot-values" });
    container.append(element("figure", { class: "plot" }, element("figcaption", {}, title), this.place, this.values));
    new ResizeObserver(() => this.#resize()).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#create());
  }

  /** `values` has a number for each series, null where it is unknown. */
  add(time, values) {
    [time, ...values].forEach((value, index) => {
      this.#rows[index].push(value);
      if (this.#rows[index].length > this.points) this.#rows[index].shift();
    });
    this.values.replaceChildren(
      ...this.series.flatMap(({ label, colour }, index) =>
        this.hidesZero && !values[index]
          ? []
          : [element("span", { class: `swatch ${colour}` }), `${label} ${values[index] === null ? "–" : this.format(values[index])} `],
      ),
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
      points: { show: false },
    }));
    const axis = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const options = {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, least, most) => [0, this.most ?? (Math.max(most ?? 0, 0) * 1.1 || 1)] } },
      series: [{}, ...lines],
      axes: [{ ...axis, size: 28, space: 80, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (this.isWhole && !Number.isInteger(tick) ? "" : this.format(tick))) }],
    };
    this.#chart = new globalThis.uPlot(options, this.#data(), this.place);
  }

  #resize() {
    if (this.#chart && this.place.clientWidth) this.#chart.setSize({ width: this.place.clientWidth, height: HEIGHT });
    else this.#create();
  }
}
