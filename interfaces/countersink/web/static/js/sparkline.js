// The small line of the last days in the overview: its size and path. The last day is not over: its
// part of the line is dashed.

import { s } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 28;
const EDGE = 2;

/** The line of some numbers; level if there are none. */
export function sparkline(values) {
  const svg = s("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  draw(svg, values);
  return svg;
}

/** Draw the line anew in the same element. */
export function draw(svg, values) {
  const most = Math.max(1, ...values);
  const least = Math.min(0, ...values);
  const step = values.length > 1 ? WIDTH / (values.length - 1) : WIDTH;
  const y = (value) => HEIGHT - EDGE - ((value - least) / (most - least)) * (HEIGHT - 2 * EDGE);
  const points = values.map((value, i) => `${round(i * step)},${round(y(value))}`);
  if (points.length === 1) points.push(`${WIDTH},${round(y(values[0]))}`);
  if (points.length === 0) points.push(`0,${y(0)}`, `${WIDTH},${y(0)}`);
  const [over, running] = [points.slice(0, -1), points.slice(-2)];
  const line = `M${over.join("L")}`;
  svg.replaceChildren(
    s("path", { class: "area", d: `${line}L${over.at(-1).split(",")[0]},${round(y(0))}L0,${round(y(0))}Z` }),
    s("path", { class: "line", d: line, "vector-effect": "non-scaling-stroke" }),
    s("path", { class: "line running", d: `M${running.join("L")}`, "vector-effect": "non-scaling-stroke" }),
  );
}

const round = (n) => Math.round(n * 10) / 10;
