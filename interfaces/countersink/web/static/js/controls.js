// The controls above a counter's chart: days, unit, time zone, comparison, ratio of two lines;
// their labels, and the reasons shown where one cannot be chosen.

import { h, put, settled } from "./dom.js";
import { visible } from "./names.js";
import { choice } from "./parts.js";
import { COMPARISONS } from "./comparison.js";
import { RANGES } from "./range.js";
import { zoneChoice } from "./zones.js";

const TYPED_MS = 600;

/** `go(changes)` changes the address. `days` and `zone`: above the chart, `drawing`: in its panel. */
export function controls(go) {
  let wanted = null;
  let typing = null; // the date field
  let left = false;
  const ranges = h("div");
  const first = day("First day", (value) => ({ from: value, to: wanted.to ?? wanted.now, range: "custom" }));
  const last = day("Last day", (value) => ({ from: wanted.from, to: value, range: "custom" }));
  const otherFirst = day("Compared from", (value) => ({ other_from: value, other_to: wanted.own.to }));
  const otherLast = day("Compared to", (value) => ({ other_from: wanted.before?.from ?? value, other_to: value }));
  const zone = zoneChoice((value) => go({ zone: value }));
  const days = h("div", { class: "controls" }, ranges, pair(first, last));
  const units = h("div");
  const compare = h("select", { onchange: () => go({ compare: compare.value || null, other_from: null, other_to: null }) }, COMPARISONS.map(([value, shown]) => h("option", { value: value || null }, shown)));
  compare.options[0].value = "";
  const others = pair(otherFirst, otherLast);
  const why = h("p", { class: "why soft", id: "why-compare" });
  const lines = h("div", { class: "controls" });
  const drawing = h("div", { class: "controls" }, units, h("div", { class: "controls beside" }, h("label", { class: "field" }, "Compare with", compare), others, why), lines);

  /** A field for a day. It waits until nothing is typed any more: half a date may be a valid one. */
  function day(label, changes) {
    const typed = settled(() => {
      typing = null;
      if (!left && field.value && field.checkValidity()) go(changes(field.value));
    }, TYPED_MS);
    const field = h("input", { type: "date", "aria-label": label, min: "1970-01-01", onchange: () => typed((typing = field)) });
    return field;
  }

  function pair(one, other) {
    return h("span", { class: "dates" }, one, h("span", { "aria-hidden": "true" }, "–"), other);
  }

  function dated(field, iso) {
    // The same value again would put the cursor back to the field's beginning.
    if (field !== typing && field.value !== (iso ?? "")) field.value = iso ?? "";
  }

  /** The controls, as the address has them; `settings` of the counter, `by`: what is drawn. */
  function show(next, settings, by) {
    wanted = next;
    const { range, can, hours, before, from, each, filter, ratio } = wanted;
    const places = [ranges, units, lines];
    const focused = places.some((one) => one.contains(document.activeElement)) ? document.activeElement : null;
    const offered = RANGES.filter(([value]) => value !== "1" || hours);
    put(ranges, choice("Days", offered, range, (value) => go({ range: value, from: null, to: null, by: null })));
    dated(first, from);
    dated(last, wanted.to);
    zone.show(wanted.usual, wanted.usual === settings.time_zone, wanted.asked);
    put(
      units,
      choice(
        "Shown by",
        [
          ["hour", "Hours", can.hour ? null : hours ? "for at most 92 days" : "this counter is counted by day"],
          ["day", "Days"],
          ["month", "Months", can.month ? null : "for more than 31 days"],
        ],
        wanted.by === "auto" ? by : wanted.by,
        (value) => go({ by: value }),
      ),
    );
    compare.value = wanted.compare;
    const because = from === null ? "The range of all days has no period before it." : wanted.lines.length > 1 && !ratio ? "Needs a single line, or a ratio." : "";
    compare.disabled = Boolean(because);
    why.textContent = because;
    why.hidden = !because;
    others.hidden = wanted.compare !== "own";
    dated(otherFirst, before?.from);
    dated(otherLast, before?.to);
    put(lines, filter.key.length > 1 && !wanted.beside.length && eachKey(each), wanted.lines.length > 1 && ratioChoice(ratio));
    lines.hidden = !lines.hasChildNodes();
    if (focused) refocus(focused, places);
  }

  function eachKey(each) {
    const box = h("input", { type: "checkbox", checked: each, onchange: () => go({ each: box.checked ? "1" : null, ratio: null }) });
    return h("label", { class: "check" }, box, "A line for each key");
  }

  /** The choice between totals and the ratio of two lines. */
  function ratioChoice(ratio) {
    const [a, b] = wanted.lines.map((line) => shortened(title(line)));
    const two = wanted.lines.length === 2;
    const divided = two ? [["ab", `${a} ÷ ${b}`], ["ba", `${b} ÷ ${a}`]] : [["ab", "Ratio", "needs exactly two lines"]];
    return choice("Show", [["", "Totals"], ...divided], ratio ?? "", (value) => go({ ratio: value || null, ...(value ? {} : { compare: null }) }));
  }

  return {
    days,
    drawing,
    zone: zone.element,
    show,
    gone: () => (left = true),
  };
}

/** A line's name: its key where each key has a line, else its counter. */
export const title = (line) => (line.key === null ? visible(line.counter) : line.key === "" ? "(no key)" : visible(line.key));

const shortened = (text) => ([...text].length > 24 ? `${[...text].slice(0, 23).join("")}…` : text);

/** Give the focus to the new element in place of `before`, which had it. */
function refocus(before, places) {
  const called = (one) => `${one.tagName} ${one.getAttribute("aria-label") ?? one.textContent} ${one.type}`;
  const all = places.flatMap((part) => [...part.querySelectorAll("button, input")]);
  all.find((one) => called(one) === called(before))?.focus();
}
