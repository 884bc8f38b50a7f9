// The sentences beside and under a chart: comparison with the other period, days left out, today
// not over, time zone, months; different visitors, or why they are not known; how a counter is
// counted, and what its buckets cannot tell.

import { MOST_BARS } from "./chart.js";
import { title } from "./controls.js";
import { h } from "./dom.js";
import { MEMBERS, age, between, change, label, labelIn, plus, whole } from "./format.js";
import { visible } from "./names.js";
import { told } from "./parts.js";

/** The change against the other period, and the sums it compares: of today only its full hours. The
    first argument comes from `series` or `lastTwoDays` (series.js). */
export function compared({ sum, before }, written, better) {
  if (!before || before.trouble) return "";
  if (!before.alike) return `before ${written(before.sum)}`;
  const { now: mine, then, until } = before.alike;
  const changed = h("span", { class: "change" });
  told(changed, mine, then, better);
  const part = until === null ? "days of both" : until ? `up to ${until}` : "without today";
  return [change(mine, then) && [changed, " · "], until === null && mine === sum ? "" : `${part} ${written(mine)}, `, `before ${written(then)}`];
}

/** How a counter is counted, and for how long its buckets are kept. */
export function counting({ resolution, time_zone: zone, keep, rolled_up_to: rolled }) {
  const unit = { quarter: "quarter of an hour" }[resolution] ?? resolution;
  const kept = Object.entries(keep ?? {}).map(([width, time]) => `${width}s for ${age(time)}`);
  return `Counted by ${unit} in ${zone}${kept.length ? `, keeping ${kept.join(", ")}` : ""}${rolled.month ? `, by month before ${labelIn(zone, new Date(rolled.month)).slice(0, 10)}` : ""}`;
}

/** Says that a counter's buckets are too wide for `what`, and how to get finer ones. */
export const tooWide = (counter, { resolution }, what, finer) =>
  h("p", { class: "soft" }, `This counter is counted by ${resolution}, so its ${what} are not known. From now on it can be counted by ${finer}: `, h("code", null, `countersink counter set ${counter} --resolution ${finer}`));

/** Says that nothing was counted (`when`), when something last was (`last`: a day or month); links to `days` there. */
export function emptyDays(when, days, last, address) {
  const by = last.length > 7 ? "day" : "month";
  const [from, to] = by === "day" ? [plus(last, 1 - days), last] : [`${last}-01`, plus(`${last}-01`, 30)];
  return h("p", { class: "notice" }, `Nothing counted ${when} was ${by === "day" ? "on" : "in"} ${label(by, last)}. `, h("a", { href: address({ range: "custom", from, to }) }, "Show that time"));
}

/** Says before which time days, hours or minutes are rolled up, and so left out. */
export function toldFrom(by, iso, zone) {
  const begin = by === "day" ? iso : labelIn(zone, new Date(iso));
  return `${MEMBERS[by]} before ${label(by, begin)} are rolled up to ${by === "day" ? "months" : "wider buckets"}, and left out. `;
}

/** How many different visitors there are; the bounds of an estimate are its title, and are read out. */
export function differentVisitors({ total, estimate, low, high }, days = "") {
  const bounds = estimate ? `${whole(low)} to ${whole(high)}, with 95 %` : null;
  const words = `${estimate ? "≈ " : ""}${whole(total)} different visitor${total === 1 ? "" : "s"}${days}`;
  return h("span", { title: bounds }, words, bounds && h("span", { class: "unseen" }, ` (${bounds})`));
}

/** Why their number is not known; for renewed salts, what to choose. `zone`: the counter's, if another is shown. */
export function unknownVisitors(message, zone) {
  const salts = / as (salts are renewed .*|its salt was renewed): ask /.exec(message);
  return h("span", null, salts ? `Different visitors over all of these days are not known, as ${salts[1]}. Choose a single day${zone ? ` in ${zone}` : ""}.` : `${message}.`);
}

/** Says which days of either period have no day of the other beside them. */
export function unpaired(by, { alone, left }) {
  if (by !== "day") return "";
  const told = (days) => (days.length === 1 ? label("day", days[0]) : `${days.length} days`);
  return [alone.length && `${told(alone)}: nothing to compare with. `, left.length && `${told(left)} of the other period: left out. `].filter(Boolean).join("");
}

/** "15 – 21 Nov 2026" of labels of which some may be null. */
export function period(by, labels) {
  const known = labels.filter(Boolean);
  return known.length ? between(by, known[0], known.at(-1)) : "";
}

/** The sentences under a chart. `useful`: the other period, if it is drawn; `partial`: which point is not over. */
export function remarks(wanted, found, useful, partial, written) {
  const { before, labels, values, by } = found;
  return [
    wanted.lines.length > 1 && useful && [compared(found, written, "none"), ". "],
    useful && [h("span", { class: "of now" }, period(by, labels)), " ", h("span", { class: `of then ${labels.length > MOST_BARS || wanted.ratio ? "dashed" : ""}` }, period(by, useful.labels)), " "],
    wanted.compare && before?.trouble && `${before.trouble} `,
    useful && unpaired(by, useful),
    wanted.zone && `Days of ${visible(wanted.shownZone)}. `,
    partial !== null && `${{ month: "This month", hour: "This hour" }[by] ?? "Today"} is not over. `,
    found.toldFrom && toldFrom(by, found.toldFrom, wanted.shownZone),
    wanted.each && wanted.filter.key.length > wanted.lines.length && `Of ${wanted.filter.key.length} keys, the first ${wanted.lines.length} have a line. `,
    wanted.ratio && values.includes(null) && `Where ${title(wanted.lines[wanted.ratio === "ab" ? 1 : 0])} is 0, there is no ratio. `,
  ];
}
