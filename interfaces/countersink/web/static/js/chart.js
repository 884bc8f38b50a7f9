// Draws a series with uPlot: bars or lines (`MOST_BARS`), several lines or a ratio, the other
// period pale, what is not over hatched or dashed, notes, highest and lowest point, arrow keys, and
// the texts for an empty chart.

import { h, text } from "./dom.js";
import { label, short } from "./format.js";
import { stroke } from "./lines.js";
import { plotting } from "./plot.js";
import { ticks } from "./ticks.js";

/** Maximum number of points that are drawn as bars. */
export const MOST_BARS = 62;

/** Chart of { by, labels, values, before: { labels, values } | null, name, lines, written, ratio, partial, notes }:
    `lines` are [{ name, values }] instead of the one, or null; `written` makes a number a text;
    `partial` is the place of a point that is not over, or null; `notes` has a text or null for each point. */
export class Chart {
  #plot = null;
  #series = null;
  #gone = false;
  #held = undefined; // the label chosen by the keyboard, while the plot is made anew
  #canvas = h("div", { class: "plot" });
  #readout = h("p", { class: "readout" });
  #observer = new ResizeObserver(() => this.#resize());
  #themed = () => this.#plot && this.#make();

  /** `label`: its name for screen readers, which says how to use it by the keyboard. */
  constructor(label = "Walk through the chart with the arrow keys") {
    this.element = h(
      "div",
      {
        class: "chart",
        tabindex: "0",
        role: "slider",
        "aria-label": label,
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
    // Drawn into the same plot, so that the point chosen by the keyboard stays chosen.
    if (this.#plot && sameShape(before, series)) this.#renew();
    else if (window.uPlot) {
      this.#held = this.element === document.activeElement ? before?.labels[this.#plot?.cursor.idx] : undefined;
      this.#make();
    } else {
      this.#describe(null);
      plotting().then(
        () => this.#series === series && !this.#gone && this.#make(),
        (error) => this.#canvas.replaceChildren(h("p", { class: "soft" }, error.message)),
      );
    }
  }

  /** Replace the last value, and draw it. */
  last(value) {
    this.#series.values[this.#series.values.length - 1] = value;
    if (this.#plot) this.#renew();
    else this.#describe(null);
  }

  destroy() {
    this.#gone = true;
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
    this.#describe(this.#plot.cursor.idx ?? null);
  }

  #renew() {
    this.#plot.setData(this.#data(this.#series));
    this.#describe(this.#plot.cursor.idx ?? null);
  }

  #data({ labels, values, before, lines, ratio, partial }) {
    // A whole day is not drawn behind one that is not over.
    const then = before ? [labels.map((_, i) => (i === partial ? null : before.values[i] ?? null))] : [];
    const all = lines ? lines.map((line) => line.values) : [values];
    const bars = inBars({ labels, lines, ratio });
    return [labels.map((_, i) => i), ...then, ...all.flatMap((own) => parted(own, partial, bars))]; // the last one is drawn above the others
  }

  #options({ by, labels, before, lines, ratio, written, partial }) {
    const style = getComputedStyle(this.element);
    const colour = (name) => style.getPropertyValue(name).trim();
    const bars = inBars({ labels, lines, ratio });
    const font = `12px ${style.fontFamily}`;
    const width = this.#width();
    const marks = ticks(by, labels, width - 56);
    const accent = colour("--accent");
    let own = [
      {
        stroke: accent,
        width: bars ? 0 : 1.75,
        fill: colour(bars ? "--accent" : "--accent-wash"),
        paths: bars ? uPlot.paths.bars({ size: before ? [0.5, 32] : [0.72, 44], radius: 0.12 }) : uPlot.paths.linear(),
        points: { show: false },
      },
    ];
    if (lines || ratio) own = (lines ?? [null]).map((_, n) => line(n, colour, labels.length <= MOST_BARS));
    const running = (one) => ({ ...one, ...(bars ? { width: 1, fill: hatched(accent) } : { dash: [2, 3], fill: undefined }) });
    const series = [{}, ...own.flatMap((one) => (partial === null ? [one] : [one, running(one)]))];
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
        y: { range: (_, least, most) => [Math.min(0, least ?? 0), ratio ? ceiling(least, most) : Math.max(1, (most ?? 1) * 1.04)] },
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
          size: (_, shown) => Math.max(52, 12 + 7 * Math.max(0, ...(shown ?? []).map((one) => one.length))),
          gap: 8,
          space: 36,
          incrs: [1, 2, 5].flatMap((n) => [...Array(ratio ? 28 : 19).keys()].map((e) => n * 10 ** (ratio ? e - 9 : e))).sort((a, b) => a - b),
          values: (_, splits) => splits.map((n) => (ratio ? written(n) : short(n))),
        },
      ],
      series,
      hooks: {
        ready: [() => this.#series.labels.includes(this.#held) && this.#point(this.#series.labels.indexOf(this.#held))],
        draw: [(plot) => flags(plot, this.#series.notes ?? [], colour("--warn"))],
        setCursor: [(plot) => this.#describe(plot.cursor.idx ?? null)],
      },
    };
  }

  #describe(index) {
    const { by, labels, values, before, name, lines, written, partial, notes } = this.#series;
    this.#readout.classList.toggle("pointing", index !== null);
    this.element.setAttribute("aria-valuemax", String(Math.max(0, labels.length - 1)));
    if (index === null || labels[index] === undefined) {
      const said = labels.length ? extremes(this.#series) : "Nothing was counted in these days.";
      text(this.#readout, said);
      this.element.setAttribute("aria-valuenow", String(Math.max(0, labels.length - 1)));
      this.element.setAttribute("aria-valuetext", `${name}: ${labels.length} points. ${said}`);
      return;
    }
    const then = before?.values[index];
    const whole = index === partial ? "all of it, " : "";
    const beside = then === undefined || then === null ? "" : `, before ${written(then)} (${whole}${label(by, before.labels[index])})`;
    const shown = lines ? lines.map((one) => `${one.name} ${written(one.values[index])}`).join(", ") : written(values[index]);
    const said = `${label(by, labels[index])}${index === partial ? " (not over)" : ""}: ${shown}${beside}${notes?.[index] ? `. ${notes[index]}` : ""}`;
    text(this.#readout, said);
    this.element.setAttribute("aria-valuenow", String(index));
    this.element.setAttribute("aria-valuetext", said);
  }

  #key(event) {
    const count = this.#series?.labels.length ?? 0;
    if (!count || !this.#plot) return;
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
    else plot.setCursor({ left: plot.valToPos(index, "x"), top: plot.valToPos(this.#series.values[index] ?? 0, "y") });
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

/** The upper end of an axis of ratios, which may be small, negative, or none. */
const ceiling = (least, most) => (most > 0 ? most * 1.04 : least < 0 ? 0 : 1);

/** Options of the nth of several lines. A value between two gaps has no line, and is drawn as a point. */
function line(n, colour, few) {
  const { colour: own, dash } = stroke(n);
  const alone = (plot, i) => {
    const values = plot.data[i];
    return values.flatMap((value, at) => (value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null ? [at] : []));
  };
  return {
    stroke: colour(own),
    width: 2,
    dash,
    paths: uPlot.paths.linear(),
    points: { show: true, size: few ? 6 : 5, width: 1.5, fill: colour("--surface"), filter: (plot, i) => (few ? null : alone(plot, i)) },
  };
}

/** Draw a mark above each point that has a note. */
function flags(plot, notes, colour) {
  const { top } = plot.bbox;
  const size = 4 * devicePixelRatio;
  plot.ctx.save();
  plot.ctx.fillStyle = colour;
  notes.forEach((note, i) => {
    if (note === null) return;
    const x = plot.valToPos(i, "x", true);
    plot.ctx.beginPath();
    plot.ctx.moveTo(x - size, top - 2 * size);
    plot.ctx.lineTo(x + size, top - 2 * size);
    plot.ctx.lineTo(x, top - size / 2);
    plot.ctx.fill();
  });
  plot.ctx.restore();
}

const inBars = ({ labels, lines, ratio }) => labels.length <= MOST_BARS && !lines && !ratio;

/** The values as one series, or, with one that is not over, as two: the others, and that one; its line
    begins at the point before it. Later points without counts are left out. */
function parted(values, partial, bars) {
  if (partial === null) return [values];
  return [
    values.map((value, i) => (i < partial || (i > partial && value) ? value : null)),
    values.map((value, i) => (i === partial || (i === partial - 1 && !bars) ? value : null)),
  ];
}

/** A pattern of stripes, which fills bars. */
function hatched(colour) {
  const tile = document.createElement("canvas");
  const size = (tile.width = tile.height = Math.round(6 * devicePixelRatio));
  const stripes = tile.getContext("2d");
  stripes.strokeStyle = colour;
  stripes.lineWidth = size / 3;
  for (const x of [-size, 0, size]) {
    stripes.moveTo(x - size / 2, size * 1.5);
    stripes.lineTo(x + size * 1.5, -size / 2);
  }
  stripes.stroke();
  return stripes.createPattern(tile, "repeat");
}

/** "Highest: 12, Sat, 21 Nov 2026"; below 0 what is lowest, and beside it only a highest above 0. */
function extremes({ by, labels, values, lines, written }) {
  if (lines) return `${labels.length} points of ${lines.length} lines`;
  const known = values.filter((value) => value !== null);
  if (!known.length) return "No ratio: the divisor is always 0.";
  const told = (word, value) => `${word}: ${written(value)}, ${label(by, labels[values.indexOf(value)])}`;
  const most = Math.max(...known);
  const least = Math.min(...known);
  if (least >= 0) return told("Highest", most);
  return most > 0 ? `${told("Highest", most)}; ${told("lowest", least)}` : told("Lowest", least);
}

/** Whether two series have the same points, so that only their values differ. */
function sameShape(one, other) {
  const kind = ({ before, lines, ratio, partial }) => `${Boolean(before)} ${lines?.length} ${ratio} ${partial}`;
  return one.by === other.by && kind(one) === kind(other) && one.labels.join() === other.labels.join();
}
