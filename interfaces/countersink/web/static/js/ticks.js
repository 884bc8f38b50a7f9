// Labels of a chart's time axis: which minutes, hours, days or months have one, and how far apart
// (`LABEL_PX`).

import { dayShort, monthShort } from "./format.js";

const LABEL_PX = 64;

/** [[index, text], …] for labels of a series, as many as fit into some pixels. */
export function ticks(by, labels, width) {
  const room = Math.max(2, Math.floor(width / LABEL_PX));
  for (const rule of RULES[by]) {
    const found = [];
    labels.forEach((iso, i) => {
      if (rule.at(iso, labels.length - 1 - i)) found.push([i, rule.text(iso)]);
    });
    if (found.length <= room && (found.length > 1 || rule.last)) return found;
    if (rule.last) return thinned(found, room);
  }
  return [];
}

function thinned(found, room) {
  const every = Math.ceil(found.length / room);
  return found.filter((_, i) => i % every === 0);
}

const dayOf = (iso) => Number(iso.slice(8, 10));
const monthOf = (iso) => Number(iso.slice(5, 7));
const hourOf = (iso) => Number(iso.slice(11, 13));
const onHour = (iso) => iso.slice(14, 16) === "00";
const weekday = (iso) => new Date(`${iso.slice(0, 10)}T00:00:00Z`).getUTCDay();
const monthText = (iso) => (monthOf(iso) === 1 ? iso.slice(0, 4) : monthShort(iso));
const hourText = (iso) => (hourOf(iso) === 0 ? dayShort(iso.slice(0, 10)) : iso.slice(11, 16));
const everyHours = (n) => ({ at: (iso) => onHour(iso) && hourOf(iso) % n === 0, text: hourText });
const minuteOf = (iso) => Number(iso.slice(14, 16));
const timeText = (iso) => iso.slice(11, 16);
// One of the last minute would be cut off at the edge.
const everyMinutes = (n) => ({ at: (iso, back) => back > 0 && minuteOf(iso) % n === 0, text: timeText });
const everyDays = (n) => ({ at: (_, back) => back % n === 0, text: dayShort });
const everyMonths = (n) => ({ at: (iso) => (monthOf(iso) - 1) % n === 0, text: monthText });
const firsts = (n) => ({ at: (iso) => dayOf(iso) === 1 && (monthOf(iso) - 1) % n === 0, text: monthText });
const midnight = (iso) => hourOf(iso) === 0 && onHour(iso);
const years = { text: (iso) => iso.slice(0, 4), last: true };

const RULES = {
  minute: [...[1, 5, 10, 15].map(everyMinutes), { ...everyMinutes(30), last: true }],
  quarter: [{ at: () => true, text: timeText }, { at: (iso) => minuteOf(iso) % 30 === 0, text: timeText, last: true }],
  hour: [
    everyHours(1),
    everyHours(3),
    everyHours(6),
    everyHours(12),
    { at: midnight, text: hourText },
    { at: (iso) => midnight(iso) && weekday(iso) === 1, text: hourText },
    { at: midnight, text: hourText, last: true },
  ],
  day: [
    everyDays(1),
    everyDays(2),
    everyDays(3),
    { at: (iso) => weekday(iso) === 1, text: dayShort },
    firsts(1),
    firsts(3),
    firsts(6),
    { ...years, at: (iso) => dayOf(iso) === 1 && monthOf(iso) === 1 },
  ],
  month: [everyMonths(1), everyMonths(3), everyMonths(6), { ...years, at: (iso) => monthOf(iso) === 1 }],
};
