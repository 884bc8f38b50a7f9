// The lists of a counter's keys, and of the values of a dimension, with the largest totals: how many
// are shown (`FIRST_KEYS`, `FIRST_VALUES`, `MOST_LISTED`), search, change, CSV, and their texts.

import { address, counterPath, get } from "./api.js";
import { amount, announce, h, put, settled, text } from "./dom.js";
import { between, day, moment, percent, plus, whole } from "./format.js";
import { name, visible } from "./names.js";
import { failure, told } from "./parts.js";
import { isKeyless, withKey } from "./range.js";

const FIRST_KEYS = 25;
const FIRST_VALUES = 8;
const STEP = 4;
const MOST_LISTED = 10_000;
const DRAWN = 500;
const MOST_CHANGES = 2_000; // keys of which it is asked how they have changed

/** The list of keys or, with a dimension, of its values. `picked(key)` is called when somebody chooses
    one. A chosen value does not limit the list of its own dimension: another may be chosen. */
export function keys(counter, picked, dimension = null) {
  const first = dimension === null ? FIRST_KEYS : FIRST_VALUES;
  const noun = dimension ?? "key";
  const id = `top-${noun}`;
  let wanted = null;
  let chosen = []; // values of the dimension that the view is limited to
  let sum = 0;
  let shareOf = 0;
  let n = first;
  let rows = [];
  let items = []; // of the first rows: the others are drawn when they are scrolled to
  let most = 1;
  let asking = null;
  const end = new IntersectionObserver((seen) => seen.at(-1).isIntersecting && further(), { rootMargin: "600px" });

  const list = h("ol", { class: "keys" });
  const note = h("p", { class: "soft" });
  const explained = h("p", { class: "soft explained", hidden: true });
  const trouble = h("div");
  const more = h("button", { type: "button", hidden: true, onclick: () => ask(Math.min(MOST_LISTED, n * STEP)) }, "Show more");
  const find = h("input", {
    type: "search",
    placeholder: "Find keys",
    "aria-label": "Find keys",
    spellcheck: "false",
    maxlength: "255",
    oninput: settled(() => ask(first), 150),
  });
  const element = h(
    "section",
    { class: dimension === null ? "top-keys" : "top-keys values panel", "aria-labelledby": id },
    h("div", { class: "head" }, h("h2", { id }, dimension === null ? "Top keys" : `By ${dimension}`), dimension === null && find),
    trouble,
    list,
    more,
    explained,
    note,
  );

  async function ask(number) {
    if (!wanted) return; // before the first answer; `show` will ask
    n = number;
    asking?.abort();
    const own = (asking = new AbortController());
    const also = n > MOST_CHANGES ? null : changeOf(wanted);
    const question = { ...rowsOf(n), also: also && also.map(({ from, to }) => `${from}..${to}`) };
    try {
      const found = await get(counterPath(counter, "top"), question, own.signal);
      put(trouble);
      show(dimension === null ? found.rows : found.rows.map((row) => ({ ...row, key: row[dimension] })));
      if (found.since) note.append(` Counted by ${dimension} from ${moment(found.since)} on.`);
      explain(also);
    } catch (error) {
      if (error.name === "AbortError") return;
      // No breakdown has this dimension together with those that are chosen.
      const unknown = dimension !== null && error.status === 422;
      if (unknown) show([]);
      element.hidden = false;
      put(trouble, unknown ? h("p", { class: "soft" }, error.message) : failure(error, () => ask(n)));
    }
  }

  /** The parameters of a request for so many rows. */
  function rowsOf(number) {
    const filter = dimension === null ? { ...wanted.filter, search: find.value } : { ...wanted.filter, by: dimension, where: wanted.filter.where.filter((one) => !isOf(dimension, one)) };
    return { n: number, from: wanted.from, to: wanted.to, time_zone: wanted.zone, ...filter };
  }

  function show(found) {
    rows = withKey(found, dimension === null && wanted.dimensional);
    most = Math.max(1, ...rows.map((row) => row.total));
    const all = rows.reduce((added, row) => added + row.total, 0);
    shareOf = dimension === null ? sum : rows.length < n ? all : chosen.length ? 0 : sum;
    element.hidden = dimension === null ? isKeyless(found, wanted.filter) && !find.value : !chosen.length && rows.every(({ key }) => key === "");
    arrange(rows.slice(0, Math.max(DRAWN, items.length)));
    fill(0);
    more.hidden = found.length < n || n >= MOST_LISTED;
    const searched = find.value;
    if (!rows.length && dimension !== null) put(note);
    else if (!rows.length) put(note, searched ? `No key has “${visible(searched)}” in it.` : "Nothing was counted in these days.");
    else if (n >= MOST_LISTED && rows.length >= MOST_LISTED) put(note, `The ${whole(MOST_LISTED)} largest keys. `, csv(), " has the same keys; countersink export has all.");
    else put(note, csv());
    if (searched) announce(rows.length === 1 ? "1 key found" : `${rows.length} keys found`);
  }

  /** Say which ranges the changes compare. */
  function explain(also) {
    explained.hidden = !also || !rows.length;
    if (!also) return;
    const [mine, other] = also.map(({ from, to }) => (to.length > 10 ? `${day(from.slice(0, 10))} up to ${to.slice(11, 16)}` : from === to ? day(from) : between("day", from, to)));
    const without = also[0].to < wanted.to ? "; today is not over, and left out" : "";
    text(explained, `Change: ${mine} against ${other}${without}. New: no counts in the period before.`);
  }

  /** Show items for these rows: items that are there are kept, and so is the focus. */
  function arrange(drawn) {
    if (drawn.length === items.length && drawn.every(({ key }, i) => key === items[i].key)) return;
    const known = new Map(items.map((one) => [one.key, one]));
    const focused = items.find((one) => one.button === document.activeElement);
    items = drawn.map(({ key }) => known.get(key) ?? item(key));
    list.replaceChildren(...items.map((one) => one.element));
    if (items.includes(focused)) focused.button.focus({ preventScroll: true });
  }

  function further() {
    const from = items.length;
    const part = rows.slice(from, from + DRAWN).map(({ key }) => item(key));
    items.push(...part);
    list.append(...part.map((one) => one.element));
    fill(from);
  }

  /** Write the numbers of the items from this place on. */
  function fill(from) {
    for (let i = from; i < items.length; i++) items[i].tell(rows[i], i + 1);
    end.disconnect();
    if (items.length < rows.length) end.observe(items.at(-1).element);
  }

  function csv() {
    const query = { ...rowsOf(MOST_LISTED), format: "csv", spreadsheet: true };
    return h("a", { href: address(counterPath(counter, "top"), query), download: true }, "Download as CSV");
  }

  function item(key) {
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    const place = h("span", { class: "rank number", "aria-hidden": "true" });
    const button = h("button", { type: "button", class: "key", onclick: () => picked(key) }, key === "" ? h("em", null, `(no ${noun})`) : name(key));
    const share = h("span", { class: "share number soft" });
    const changed = h("span", { class: "change number" });
    const number = h("span", { class: "number total" });
    return {
      key,
      button,
      element: h("li", null, bar, place, button, changed, share, number),
      tell({ total, also }, rank) {
        if (dimension !== null) button.setAttribute("aria-pressed", String(chosen.includes(key)));
        if (also) told(changed, ...also, wanted.better);
        else text(changed, "");
        bar.style.setProperty("--part", String(Math.max(0, total) / most));
        text(place, String(rank));
        text(share, shareOf > 0 && total >= 0 ? percent(total / shareOf) : "");
        amount(number, whole(total));
      },
    };
  }

  return {
    element,
    /** Show the keys of these days; `total` is the sum that shares are of. */
    show(range, total) {
      sum = total;
      const same = wanted && asked(wanted) === asked(range);
      wanted = range;
      chosen = dimension === null ? [] : wanted.filter.where.filter((one) => isOf(dimension, one)).map((one) => one.slice(dimension.length + 1));
      ask(same ? n : first);
    },
    /** Request the same rows again; `total` is the sum by now. */
    again(total) {
      sum = total;
      ask(n);
    },
    gone() {
      asking?.abort();
      end.disconnect();
    },
  };
}

/** The two ranges that a change compares: the view's days that are over, and those before them or those
    that the view is compared with. For today alone: its hours that are over, and the same ones of
    yesterday. Null: there are none. */
function changeOf({ from, to, now, days, before, alike }) {
  if (alike && before.kind === "1") return alike.ranges;
  if (from === null || from >= now) return null;
  const last = to >= now ? plus(now, -1) : to;
  if (!before || before.kind === "1") return [{ from, to: last }, { from: plus(from, -days), to: plus(last, -days) }];
  const other = { from: before.from, to: (last < to && before.day(last)) || before.to };
  return other.from <= other.to ? [{ from, to: last }, other] : null;
}

/** Whether a filter, "country=DE", is of this dimension. */
export const isOf = (dimension, filter) => filter.startsWith(`${dimension}=`);

const asked = ({ from, to, zone, filter, before }) => JSON.stringify([from, to, zone, filter, before]);
