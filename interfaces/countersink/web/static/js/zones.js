// The choice of a view's time zone: the counter's own, the browser's, UTC, or any other.

import { h, put } from "./dom.js";
import { visible } from "./names.js";

/** A <select> in its label; `chosen(zone)` is called with null for the counter's own. */
export function zoneChoice(chosen) {
  const select = h("select", { onchange: () => chosen(select.value || null) });
  let drawn = null;
  return {
    element: h("label", { class: "field" }, "Time zone", select),
    /** `own`: the view's usual zone; `alone`: it is the counter's own; `asked`: the zone in the address. */
    show(own, alone, asked) {
      const here = new Intl.DateTimeFormat().resolvedOptions().timeZone;
      if (drawn !== `${own} ${asked}`) {
        drawn = `${own} ${asked}`;
        const first = [["", `${own} (${alone ? "the counter’s" : "available for all lines"})`]];
        if (here && here !== own) first.push([here, `${here} (this browser’s)`]);
        if (own !== "UTC" && here !== "UTC") first.push(["UTC", "UTC"]);
        const known = new Set(first.map(([zone]) => zone || own));
        const others = [...new Set([...(Intl.supportedValuesOf?.("timeZone") ?? []), ...(asked ? [asked] : [])])].filter((zone) => !known.has(zone)).sort();
        put(select, first.map(([zone, shown]) => h("option", { value: zone || null }, shown)), h("optgroup", { label: "Others" }, others.map((zone) => h("option", { value: zone }, visible(zone)))));
        select.options[0].value = "";
      }
      select.value = asked && asked !== own ? asked : "";
    },
  };
}
