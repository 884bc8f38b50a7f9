// The numbers of a chart as a table (`MOST_ROWS` rows), its columns, and links to CSV.

import { address, counterPath } from "./api.js";
import { title } from "./controls.js";
import { h, put } from "./dom.js";
import { label, ratios, whole } from "./format.js";
import { picked } from "./range.js";

const MOST_ROWS = 400;
const NAMES = { minute: "Minute", quarter: "Quarter of an hour", hour: "Hour", day: "Day", month: "Month" };

/** `columns` are [[name, values, written], …]; the latest row comes first. */
export function table(element, by, labels, columns) {
  const head = [NAMES[by], ...columns.map(([name]) => name)];
  const rows = labels.map((iso, i) => [iso, i]).reverse().slice(0, MOST_ROWS);
  put(
    element,
    h(
      "table",
      null,
      h("thead", null, h("tr", null, head.map((name, i) => h("th", { scope: "col", class: i ? "number" : null }, name)))),
      h(
        "tbody",
        null,
        rows.map(([iso, i]) =>
          h("tr", null, h("th", { scope: "row" }, label(by, iso)), columns.map(([, values, written], n) => h("td", { class: n ? "number soft" : "number" }, written(values[i])))),
        ),
      ),
    ),
    labels.length > MOST_ROWS && h("p", { class: "soft" }, `The last ${MOST_ROWS} of ${whole(labels.length)}; the CSV file has all.`),
  );
}

/** The columns of what a chart shows; `noted`: the note on each day, if any. */
export function figuresOf(wanted, { lines, values, before, sum }, noted) {
  const columns = wanted.lines.length > 1 ? lines.map((line, i) => [title(wanted.lines[i]), line.values, whole]) : [];
  const written = wanted.ratio ? ratios(sum ?? 0) : whole;
  if (columns.length !== wanted.lines.length || wanted.ratio) columns.unshift([wanted.ratio ? "Ratio" : wanted.cumulative ? "Running total" : "Total", values, written]);
  if (wanted.compare && before) columns.splice(1, 0, ["Before", before.values, written]);
  if (noted.some(Boolean)) columns.push(["Note", noted, (one) => one ?? ""]);
  return columns;
}

/** A link to each line's numbers. */
export function downloads(wanted, by) {
  const path = by === "month" ? "totals" : by === "hour" ? "hourly" : "daily";
  return wanted.lines.map((line, i) => {
    const href = address(counterPath(line.counter, path), { ...picked(wanted, line), by: by === "month" ? by : null, format: "csv", spreadsheet: true });
    return [i > 0 && " · ", h("a", { href, download: true }, wanted.lines.length > 1 ? `${title(line)} as CSV` : "Download as CSV")];
  });
}
