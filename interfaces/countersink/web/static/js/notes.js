// Notes on days of a counter: form, list, marks in the chart, and its texts.

import { counterPath, get, remove, write } from "./api.js";
import { announce, h, put } from "./dom.js";
import { label } from "./format.js";
import { visible } from "./names.js";
import { failure } from "./parts.js";

const LONGEST = 500;

/** The notes of a counter's view; `changed()` is called when one was written or deleted. */
export function dayNotes(app, counter, changed) {
  let rows = [];
  let range = {};
  const day = h("input", { type: "date", id: "note-day", required: true, min: "1970-01-01" });
  const note = h("input", { type: "text", id: "note-text", required: true, maxlength: LONGEST });
  const everywhere = h("input", { type: "checkbox" });
  const common = h("label", { class: "check", hidden: true }, everywhere, "On all counters");
  const trouble = h("div");
  const list = h("ul");
  const form = h(
    "form",
    { hidden: true, onsubmit: save },
    h("label", { for: "note-day" }, "Day "),
    day,
    h("label", { for: "note-text" }, "Note "),
    note,
    common,
    h("button", null, "Save"),
  );
  const add = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => open() }, "Write a note on a day…");
  const element = h("section", { class: "notes", "aria-label": "Notes on days", hidden: true }, h("h2", null, "Notes"), list, trouble, add, form);
  app.known?.then(() => show());

  const place = (one) => `${one.counter === null ? "/v1/notes" : counterPath(counter, "notes")}/${one.day}`;

  function show() {
    const admin = app.may("admin");
    add.hidden = !admin || !form.hidden;
    common.hidden = !app.seesAll();
    element.hidden = !rows.length && !admin;
    put(
      list,
      rows.map((one) =>
        h(
          "li",
          null,
          h("time", { datetime: one.day }, label("day", one.day)),
          h("bdi", null, visible(one.note)),
          h("small", { class: "soft" }, [one.counter === null && "all counters", one.author !== null && visible(one.author)].filter(Boolean).join(", ")),
          admin && [
            h("button", { type: "button", class: "quiet", "aria-label": `Change the note of ${one.day}`, onclick: () => open(one) }, "Change"),
            h("button", { type: "button", class: "quiet", "aria-label": `Delete the note of ${one.day}`, onclick: () => done(() => remove(place(one)), "The note is deleted") }, "Delete"),
          ],
        ),
      ),
    );
  }

  function open(one = null) {
    form.hidden = false;
    add.hidden = true;
    if (one) {
      day.value = one.day;
      note.value = one.note;
      everywhere.checked = one.counter === null;
    }
    (day.value ? note : day).focus();
  }

  function save(event) {
    event.preventDefault();
    const one = { counter: everywhere.checked ? null : counter, day: day.value };
    done(async () => {
      await write(place(one), { note: note.value });
      form.hidden = true;
      note.value = "";
    }, "The note is saved");
  }

  async function done(work, said) {
    try {
      await work();
      put(trouble);
      announce(said);
      await load(range);
      changed();
    } catch (error) {
      put(trouble, failure(error));
    }
  }

  async function load({ from, to }, signal = undefined) {
    range = { from, to };
    try {
      ({ rows } = await get(counterPath(counter, "notes"), range, signal));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      rows = []; // the numbers are there all the same
    }
    show();
    return rows.length > 0;
  }

  /** The notes at each of these points of a chart, as one text each; null where there is none. */
  function at(by, labels) {
    const size = by === "month" ? 7 : 10;
    const texts = new Map();
    for (const one of rows) {
      const place = labels.findIndex((iso) => iso.slice(0, size) === one.day.slice(0, size));
      texts.set(place, [texts.get(place), visible(one.note)].filter(Boolean).join("; "));
    }
    return labels.map((_, i) => texts.get(i) ?? null);
  }

  return { element, load, at };
}
