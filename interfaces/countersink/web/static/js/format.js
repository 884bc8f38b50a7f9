// How numbers, percentages, days, months, times and durations are written; names and keys:
// `names.js`. The page is in English, so they are, too.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const PERCENT = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const CHANGE = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1, signDisplay: "exceptZero" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const MOMENT = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });
const DAY_SHORT = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const RANGE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });
const MONTH = new Intl.DateTimeFormat("en-GB", { month: "long", year: "numeric", timeZone: "UTC" });
const MONTH_SHORT = new Intl.DateTimeFormat("en-GB", { month: "short", timeZone: "UTC" });

/** The plural of a series' unit, as the first word of a sentence. */
export const MEMBERS = { minute: "Minutes", hour: "Hours", day: "Days", month: "Months" };

/** "1,234,567". Beyond 2^53 the page knows a number to about 16 digits only, and says so: "≈ …". */
export const whole = (n) => (n === null || n === undefined ? "–" : `${Math.abs(n) > Number.MAX_SAFE_INTEGER ? "≈ " : ""}${WHOLE.format(n)}`);
export const short = (n) => (Math.abs(n) < 1e15 ? SHORT.format(n) : n.toExponential(1).replace("e+", "e"));
export const percent = (part) => PERCENT.format(part);

const FINE = new Intl.NumberFormat("en", { style: "percent", maximumSignificantDigits: 4 });
const PLAIN = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });
/** A function that writes the ratios of a view: in percent, unless the largest is above 1. */
export const ratios = (largest) => (n) => (n === null || n === undefined ? "–" : (Math.abs(largest) <= 1 ? FINE : PLAIN).format(n));

/** "+12.5%", "no change", or "new" where there was nothing before; null: it is not known. */
export function change(now, before) {
  if (now === null || before === null || before < 0 || (before === 0 && now <= 0)) return null;
  if (before === 0) return "new";
  const shown = CHANGE.format(now / before - 1);
  return shown === "0%" ? "no change" : shown;
}

export const clock = (moment) => CLOCK.format(moment);
export const moment = (iso) => (iso ? MOMENT.format(new Date(iso)) : "–");

/** "Sat, 21 Nov 2026" of "2026-11-21". */
export const day = (iso) => DAY.format(utc(iso));
export const dayShort = (iso) => DAY_SHORT.format(utc(iso));
export const monthShort = (iso) => MONTH_SHORT.format(utc(`${iso.slice(0, 7)}-01`));

/** A label of a series (day, month, or hour or minute with a UTC offset, which is left out), for people. */
export function label(by, iso) {
  if (by === "month") return MONTH.format(utc(`${iso}-01`));
  if (by === "day") return day(iso);
  return `${day(iso.slice(0, 10))}, ${iso.slice(11, 16)}`;
}

/** "15 – 21 Nov 2026" of a series' first and last label. */
export function between(by, first, last) {
  const days = [first, last].map((iso) => utc(by === "month" ? `${iso}-01` : iso.slice(0, 10)));
  return (by === "month" ? MONTH : RANGE).formatRange(...days);
}

const UNITS = { m: "minute", h: "hour", d: "day" };
/** "2 days" of "2d". */
export const age = (text) => `${text.slice(0, -1)} ${UNITS[text.at(-1)]}${text.slice(0, -1) === "1" ? "" : "s"}`;

/** A duration: "250 ms", "12 s", "3 min", "5.0 h", "2.1 d". */
export function lasting(seconds) {
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 100) return `${seconds.toFixed(0)} s`;
  if (seconds < 6000) return `${(seconds / 60).toFixed(0)} min`;
  if (seconds < 48 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}

/** Today's date in a time zone, as "2026-11-21". */
export function today(zone) {
  try {
    const parts = new Intl.DateTimeFormat("en-u-ca-iso8601-nu-latn", { timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit" }).formatToParts();
    return ["year", "month", "day"].map((type) => parts.find((one) => one.type === type).value).join("-");
  } catch {
    return new Date().toISOString().slice(0, 10); // a zone that this browser does not know
  }
}

/** The time of day in a time zone, as "08:05"; null: this browser does not know it. */
export function timeIn(zone) {
  try {
    return new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour: "2-digit", minute: "2-digit", hourCycle: "h23" }).format();
  } catch {
    return null;
  }
}

/** A moment as the label of a series in a time zone, "2026-11-21T08:05"; in UTC where this browser does
    not know the zone. */
export function labelIn(zone, moment) {
  try {
    return new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "short" }).format(moment).replace(" ", "T");
  } catch {
    return moment.toISOString().slice(0, 16);
  }
}

/** A day some days later (or, negative, earlier). */
export function plus(iso, days) {
  return new Date(utc(iso).getTime() + days * 86_400_000).toISOString().slice(0, 10);
}

/** The number of days from one to another, both included. */
export const span = (from, to) => Math.round((utc(to) - utc(from)) / 86_400_000) + 1;

function utc(iso) {
  return new Date(`${iso}T00:00:00Z`);
}
