// A series as a chart: bars where there are few points, a line where there are many; beside it,
// pale, the period before. Points can be walked through with the arrow keys.

import { h, text } from "./dom.js";
import { label, short, whole } from "./format.js";
import { ticks } from "./ticks.js";

/** Points that are still drawn as bars. */
export const MOST_BARS = 62;

/** Chart of { by, labels, values, before: { labels, values } | null, name }. */
export class Chart {
  #plot = null;
  #series = null;
  #canvas = h("div", { class: "plot" });
  #readout = h("p", { class: "readout" });
  #observer = new ResizeObserver(() => this.#resize());
  #themed = () => this.#plot && this.#make();

  constructor() {
    this.element = h(
      "div",
      {
        class: "chart",
        tabindex: "0",
        role: "slider",
        "aria-label": "Walk through the chart with the arrow keys",
        "aria-valuemin": "0",
        onkeydown: (event) => this.#key(event),
        onblur: () => this.#point(null),
      },
      this.#canvas,
    );
    this.legend = this.#readout;
    this.#observer.observe(this.element);
    addEventListener("theme", this.#themed);
  }

  draw(series) {
    const before = this.#series;
    this.#series = series;
    // Drawn into what is there, so that whoever walks through it stays where they are.
    if (this.#plot && alike(before, series)) this.#renew();
    else this.#make();
  }

  /** The last value has changed. */
  last(value) {
    this.#series.values[this.#series.values.length - 1] = value;
    this.#renew();
  }

  destroy() {
    this.#observer.disconnect();
    removeEventListener("theme", this.#themed);
    this.#plot?.destroy();
    this.#plot = null;
  }

  #make() {
    const series = this.#series;
    this.#plot?.destroy();
    this.#canvas.replaceChildren();
    this.#plot = new uPlot(this.#options(series), this.#data(series), this.#canvas);
    this.element.setAttribute("aria-valuemax", String(Math.max(0, series.labels.length - 1)));
    this.#describe(this.#plot.cursor.idx ?? null);
  }

  #renew() {
    this.#plot.setData(this.#data(this.#series));
    this.#describe(this.#plot.cursor.idx ?? null);
  }

  #data({ labels, values, before }) {
    const then = before ? [labels.map((_, i) => before.values[i] ?? null)] : [];
    return [labels.map((_, i) => i), ...then, values]; // the last one is drawn above the others
  }

  #options({ by, labels, before }) {
    const style = getComputedStyle(this.element);
    const colour = (name) => style.getPropertyValue(name).trim();
    const bars = labels.length <= MOST_BARS;
    const font = `12px ${style.fontFamily}`;
    const width = this.#width();
    const marks = ticks(by, labels, width - 56);
    const series = [
      {},
      {
        stroke: colour("--accent"),
        width: bars ? 0 : 1.75,
        fill: colour(bars ? "--accent" : "--accent-wash"),
        paths: bars ? uPlot.paths.bars({ size: before ? [0.5, 32] : [0.72, 44], radius: 0.12 }) : uPlot.paths.linear(),
        points: { show: false },
      },
    ];
    if (before) {
      series.splice(1, 0, {
        stroke: colour("--soft"),
        width: bars ? 0 : 1.5,
        dash: [3, 4],
        fill: bars ? colour("--before") : undefined,
        paths: bars ? uPlot.paths.bars({ size: [0.86, 54], radius: 0.08 }) : uPlot.paths.linear(),
        points: { show: false },
      });
    }
    return {
      width,
      height: this.#height(),
      padding: [12, 4, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: !bars, size: 8 } },
      scales: {
        x: { time: false, range: [-0.6, Math.max(0, labels.length - 1) + 0.6] },
        y: { range: (_, least, most) => [Math.min(0, least ?? 0), Math.max(1, (most ?? 1) * 1.04)] },
      },
      axes: [
        {
          stroke: colour("--soft"),
          font,
          grid: { show: false },
          ticks: { show: false },
          gap: 4,
          size: 26,
          splits: () => marks.map(([i]) => i),
          values: () => marks.map(([, shown]) => shown),
        },
        {
          stroke: colour("--soft"),
          font,
          grid: { stroke: colour("--line"), width: 1 },
          ticks: { show: false },
          size: 52,
          gap: 8,
          space: 36,
          incrs: [1, 2, 5].flatMap((n) => [...Array(16).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b),
          values: (_, splits) => splits.map((n) => short(n)),
        },
      ],
      series,
      hooks: { setCursor: [(plot) => this.#describe(plot.cursor.idx ?? null)] },
    };
  }

  #describe(index) {
    const { by, labels, values, before, name } = this.#series;
    this.#readout.classList.toggle("pointing", index !== null);
    if (index === null || labels[index] === undefined) {
      const most = Math.max(...values);
      text(this.#readout, labels.length ? `Highest: ${whole(most)}, ${label(by, labels[values.indexOf(most)])}` : "Nothing was counted in these days.");
      this.element.setAttribute("aria-valuenow", String(Math.max(0, labels.length - 1)));
      this.element.setAttribute("aria-valuetext", `${name}: ${labels.length} points, highest ${whole(Math.max(0, ...values))}`);
      return;
    }
    const then = before?.values[index];
    const beside = then === undefined || then === null ? "" : `, before ${whole(then)} (${label(by, before.labels[index])})`;
    const said = `${label(by, labels[index])}: ${whole(values[index])}${beside}`;
    text(this.#readout, said);
    this.element.setAttribute("aria-valuenow", String(index));
    this.element.setAttribute("aria-valuetext", said);
  }

  #key(event) {
    const count = this.#series?.labels.length ?? 0;
    if (!count) return;
    const now = this.#plot.cursor.idx ?? count;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: count - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#point(Math.min(count - 1, Math.max(0, to)));
  }

  #point(index) {
    const plot = this.#plot;
    if (!plot) return;
    if (index === null) plot.setCursor({ left: -10, top: -10 });
    else plot.setCursor({ left: plot.valToPos(index, "x"), top: plot.valToPos(this.#series.values[index], "y") });
  }

  #width() {
    return Math.max(200, Math.floor(this.element.clientWidth || 600));
  }

  #height() {
    return this.#width() < 480 ? 210 : 280;
  }

  #resize() {
    if (this.#plot && this.#plot.width !== this.#width()) this.#make();
  }
}

/** Whether two series have the same points, so that only their values differ. */
function alike(one, other) {
  return one.by === other.by && Boolean(one.before) === Boolean(other.before) && one.labels.join() === other.labels.join();
}
