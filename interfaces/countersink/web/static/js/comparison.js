// Which period another one is compared with (`COMPARISONS`: the one before, the year before, an own
// one), and which day of it stands beside which: of whole weeks, the same weekday (`WEEKS_OF_YEAR`).

import { plus, span } from "./format.js";

const WEEKS_OF_YEAR = 52;
export const COMPARISONS = [
  ["", "nothing"],
  ["1", "the period before"],
  ["year", "the year before"],
  ["own", "a period of your own"],
];

/** { kind, from, to, day(iso), month(label, i, labels) } of the other period: `day` and `month` say what
    stands beside a day or a month of this one, null: nothing. Null: there is nothing to compare with. */
export function comparison(kind, { from, to, days, by }, own) {
  if (kind === "1") return shifted(kind, plus(from, -days), plus(from, -1), from);
  if (kind === "own") {
    const first = own.from ?? plus(from, -days);
    const last = own.to ?? plus(first, days - 1);
    const [begin, end] = first <= last ? [first, last] : [last, first];
    return shifted(kind, begin, end, from);
  }
  if (kind !== "year") return null;
  if (days % 7 === 0 && by !== "month") return shifted(kind, plus(from, -7 * WEEKS_OF_YEAR), plus(to, -7 * WEEKS_OF_YEAR), from);
  // 29 February stands beside nothing. Of whole months it is a part.
  const begin = yearBefore(from) ?? `${year(from) - 1}-03-01`;
  const ends = by === "month" && plus(to, 1).endsWith("-01");
  const end = ends ? plus(`${year(plus(to, 1)) - 1}${plus(to, 1).slice(4)}`, -1) : (yearBefore(to) ?? `${year(to) - 1}-02-28`);
  const day = (iso) => (iso < from || iso > to ? null : yearBefore(iso));
  return begin <= end ? { kind, from: begin, to: end, day, month: (label) => `${year(label) - 1}${label.slice(4)}` } : null;
}

function shifted(kind, from, to, start) {
  const by = span(start, from) - 1;
  const day = (iso) => {
    const other = plus(iso, by);
    return other >= from && other <= to ? other : null;
  };
  return { kind, from, to, day, month: (label, i, labels) => labels[i] ?? null };
}

/** The values and labels of another period, in the order of the `labels` that they stand beside, null for
    none; `alone`: those of `labels` beside which none stands; `left`: the other period's that stand nowhere. */
export function aligned(by, labels, other, before) {
  const places = new Map(names(by, other.labels).map((name, i) => [name, i]));
  const beside =
    by === "month"
      ? labels.map((label, i) => before.month(label, i, other.labels))
      : names(by, labels).map((name) => {
          const day = before.day(name.slice(0, 10));
          return day && `${day}${name.slice(10)}`;
        });
  const found = beside.map((name) => places.get(name));
  const used = new Set(found);
  return {
    places: found,
    labels: found.map((i) => (i === undefined ? null : other.labels[i])),
    values: found.map((i) => (i === undefined ? null : other.values[i])),
    alone: labels.filter((_, i) => found[i] === undefined),
    left: other.labels.filter((_, i) => !used.has(i)),
  };
}

/** Names that labels of two periods have in common: days and months as they are; hours without the UTC
    offset, and with a number, as clocks that go back repeat one. */
function names(by, labels) {
  if (by !== "hour") return labels;
  const seen = new Map();
  return labels.map((iso) => {
    const time = iso.slice(0, 16);
    const nth = seen.get(time) ?? 0;
    seen.set(time, nth + 1);
    return `${time}#${nth}`;
  });
}

const year = (iso) => Number(iso.slice(0, 4));

/** The same date a year before; null of 29 February. */
function yearBefore(iso) {
  return iso.endsWith("-02-29") ? null : `${String(year(iso) - 1).padStart(4, "0")}${iso.slice(4)}`;
}
