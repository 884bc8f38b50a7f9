// Strokes of a chart's lines (dashes; colours are in `css/`), and the legend with their totals.

import { h, put, s } from "./dom.js";
import { whole } from "./format.js";
import { name } from "./names.js";
import { told } from "./parts.js";

const DASHES = [[], [9, 5], [2, 4], [12, 4, 2, 4], [16, 3], [5, 2, 2, 2, 2, 2]];

/** { colour, dash } of the nth line; the colour is a variable of CSS. */
export const stroke = (n) => ({ colour: `--line-${n + 1}`, dash: DASHES[n] });

/** Fill a legend: each line with its total and change; for a ratio, both lines and the ratio. `found` is
    what `series` (series.js) returns; `better(counter)` tells which change is good. */
export function legend(element, { lines, ratio }, found, written, better) {
  const entries = found.lines.map(({ sum, trouble }, i) => {
    const entry = item(ratio ? null : i, named(lines[i]), whole(sum), trouble);
    const pair = found.before?.alike?.lines[i];
    if (pair) told(entry.appendChild(h("span", { class: "change" })), ...pair, better(lines[i].counter));
    return entry;
  });
  if (ratio) {
    const [a, b] = ratio === "ab" ? lines : [lines[1], lines[0]];
    entries.push(item(0, [named(a), " ÷ ", named(b)], written(found.sum)));
  }
  put(element, entries);
}

/** An entry of the legend. `n`: the number of its line's stroke; null: it has none. */
function item(n, title, total, trouble = null) {
  return h("li", null, n !== null && swatch(n), h("span", { class: "name-of" }, title), h("span", { class: "number" }, trouble ? "" : total), trouble && h("span", { class: "why soft" }, trouble));
}

const named = ({ counter, key }) => (key === null ? name(counter) : key === "" ? h("em", null, "(no key)") : name(key));

function swatch(n) {
  const line = s("line", { x1: "1", y1: "6", x2: "39", y2: "6", class: `stroke-${n + 1}`, "stroke-dasharray": DASHES[n].join(" ") || null });
  return s("svg", { class: "swatch", viewBox: "0 0 40 12", "aria-hidden": "true" }, line);
}
