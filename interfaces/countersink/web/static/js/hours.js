// Averages by weekday and hour of a counter, as a map and a table: from how many days
// (`MOST_DAYS`), which hours are left out, and its texts.

import { address, counterPath, get } from "./api.js";
import { h, put } from "./dom.js";
import { between, plus, short, timeIn, whole } from "./format.js";
import { failure } from "./parts.js";
import { picked } from "./range.js";
import { toldFrom, tooWide } from "./sentences.js";

const MOST_DAYS = 92;
const WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const HOURS = Array.from({ length: 24 }, (_, hour) => `${String(hour).padStart(2, "0")}:00`);
const AVERAGE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const WIDE = matchMedia("(min-width: 60rem)");

/** The map of a counter. Nothing is requested before somebody opens it. */
export function hourMap(counter) {
  let wanted = null;
  let settings = null;
  let cells = null;
  let asking = null;
  let known = ""; // the days and the time zone of the cells
  let gone = ""; // a sentence: which hours are rolled up by now
  const body = h("div");
  const element = h("details", { class: "hours panel", ontoggle: load }, h("summary", null, "By weekday and hour"), body);
  const turned = () => cells && draw();
  WIDE.addEventListener("change", turned);

  async function load() {
    if (!element.open || !wanted) return;
    if (settings.resolution === "day") {
      put(body, tooWide(counter, settings, "hours", "hour"));
      return;
    }
    const range = days(wanted);
    const line = wanted.lines[0];
    const question = picked(wanted, line, range);
    asking?.abort();
    const own = (asking = new AbortController());
    try {
      const found = await get(counterPath(line.counter, "hourly"), question, own.signal);
      const before = JSON.stringify([cells, known]);
      cells = averages(found.rows, wanted);
      // What is rolled up by now, to days or to months, is not in the rows.
      const first = found.rows.length && found.rows[0].hour.slice(0, 10) > range.from ? found.rows[0].hour.slice(0, 10) : range.from;
      gone = found.told_from ? toldFrom("hour", found.told_from, wanted.shownZone) : "";
      known = `${between("day", first, range.to)}, ${wanted.shownZone}. ${gone}`;
      if (before === JSON.stringify([cells, known]) && body.hasChildNodes()) return; // drawn anew, it would lose the place of somebody who reads it
      draw(address(counterPath(line.counter, "hourly"), { ...question, format: "csv", spreadsheet: true }));
    } catch (error) {
      if (error.name !== "AbortError") put(body, failure(error, error.status === 422 ? null : load));
    }
  }

  let csv = "";
  function draw(link = csv) {
    csv = link;
    const all = cells.flat().filter(Boolean);
    const most = Math.max(0, ...all.map((one) => Math.abs(one.average)));
    const [rows, columns, at] = WIDE.matches ? [WEEKDAYS, HOURS, (day, hour) => cells[day][hour]] : [HOURS, WEEKDAYS, (hour, day) => cells[day][hour]];
    const shortened = (one) => (WIDE.matches ? one.slice(0, 2) : one.slice(0, 3));
    put(
      body,
      h("p", { class: "soft" }, all.length ? summary(all) : gone || "No hour of these days is over yet."),
      h(
        "div",
        { class: "map", tabindex: "0", role: "region", "aria-label": "Averages by weekday and hour" },
        h(
          "table",
          null,
          h("caption", { class: "unseen" }, "Averages by weekday and hour"),
          h("thead", null, h("tr", null, h("td"), columns.map((one) => h("th", { scope: "col", abbr: one }, shortened(one))))),
          h("tbody", null, rows.map((one, i) => h("tr", null, h("th", { scope: "row" }, WIDE.matches ? one.slice(0, 3) : one), columns.map((_, j) => cell(at(i, j), most))))),
        ),
      ),
      h("p", { class: "soft" }, `${known}Each cell is the average of the hours of its weekday; hours that are not over are left out. `, h("a", { href: csv, download: true }, "Hours as CSV")),
    );
  }

  return {
    element,
    show(next, own) {
      wanted = next;
      settings = own;
      element.hidden = wanted.lines.length > 1;
      load();
    },
    gone() {
      asking?.abort();
      WIDE.removeEventListener("change", turned);
    },
  };
}

/** The days of a view up to today; of more than `MOST_DAYS`, the last ones. */
function days({ from, to, now }) {
  const end = to === null || to > now ? now : to;
  const first = plus(end, 1 - MOST_DAYS);
  return { from: from === null || from < first ? first : from, to: end };
}

/** cells[weekday][hour]: { name, sum, times, average }, or null without such an hour. An hour that
    is not over is left out; one that occurs twice, as clocks go back, is two. */
function averages(rows, { now, shownZone }) {
  const until = `${now}T${(timeIn(shownZone) ?? "24").slice(0, 2)}`;
  const cells = WEEKDAYS.map(() => HOURS.map(() => null));
  for (const { hour: iso, total } of rows) {
    if (iso.slice(0, 13) >= until) continue;
    const day = (new Date(`${iso.slice(0, 10)}T00:00:00Z`).getUTCDay() + 6) % 7;
    const hour = Number(iso.slice(11, 13));
    const one = (cells[day][hour] ??= { name: `${WEEKDAYS[day]} ${HOURS[hour]}`, sum: 0, times: 0, average: 0 });
    one.sum += total;
    one.times += 1;
    one.average = one.sum / one.times;
  }
  return cells;
}

function summary(all) {
  const ordered = [...all].sort((a, b) => b.average - a.average);
  const told = ({ name, average }) => `${name}, ${AVERAGE.format(average)}`;
  return `Most: ${told(ordered[0])} on average. Least: ${told(ordered.at(-1))}.`;
}

function cell(one, most) {
  if (!one) return h("td", null, "–");
  const { average, sum, times, name } = one;
  const size = Math.abs(average);
  const shown = size >= 10_000 ? short(average) : size >= 10 ? String(Math.round(average)) : AVERAGE.format(average);
  const element = h("td", { title: `${name}: ${AVERAGE.format(average)} on average, ${whole(sum)} in ${times}` }, shown);
  element.style.setProperty("--level", String(most ? size / most : 0));
  return element;
}
