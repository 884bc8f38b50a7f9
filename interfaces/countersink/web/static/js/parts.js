// Parts of several views: a figure with its name, an error with Try again, a question, a choice, code
// with Copy, a change in percent.

import { h, text } from "./dom.js";
import { change } from "./format.js";

/** A figure with its name: <dt> and <dd> in a <div>. `note` is small, beneath. */
export function figure(name, value, note = null, kind = "") {
  return h("div", { class: `figure ${kind}` }, h("dt", null, name), h("dd", null, value, note && h("small", null, note)));
}

/** An error's message, with a button that calls `again`; null: no button. */
export function failure(error, again) {
  return h(
    "div",
    { class: "notice bad", role: "alert" },
    h("p", null, error.message || "Unexpected error."),
    again && h("button", { type: "button", onclick: again }, "Try again"),
  );
}

/** Ask a question in a dialog; the answer is whether the button `verb` was pressed, whose class is `kind`. */
export function sure(question, verb, kind = null) {
  const dialog = h(
    "dialog",
    { "aria-labelledby": "sure" },
    h("form", { method: "dialog" }, h("p", { id: "sure" }, question), h("div", { class: "buttons" }, h("button", { value: "no", autofocus: true }, "Cancel"), h("button", { value: "yes", class: kind }, verb))),
  );
  document.getElementById("main").append(dialog);
  dialog.showModal();
  return new Promise((answer) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(dialog.returnValue === "yes");
    });
  });
}

/** Buttons of which one is pressed: `choices` is [[value, text, notNowBecause], …]. One that cannot be
    chosen can still have the focus, and the reason stands beneath. */
export function choice(name, choices, now, chosen) {
  const id = `why-${name.toLowerCase().replaceAll(" ", "-")}`;
  const reasons = choices.filter(([, , because]) => because).map(([, shown, because]) => `${shown}: ${because}`);
  const group = h(
    "div",
    { class: "choice", role: "group", "aria-label": name },
    choices.map(([value, shown, because]) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": value === now ? "true" : "false",
          "aria-disabled": because ? "true" : null,
          "aria-describedby": because ? id : null,
          onclick: () => !because && chosen(value),
        },
        shown,
      ),
    ),
  );
  return reasons.length ? h("div", { class: "chosen" }, group, h("p", { class: "why soft", id }, `${reasons.join(". ")}.`)) : group;
}

/** A command or a piece of code, with a button that copies it. */
export function snippet(code) {
  const button = h("button", { type: "button", class: "quiet copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(shown); // not allowed here: select it, Ctrl-C does the rest
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  const shown = h("code", null, code);
  return h("div", { class: "snippet" }, h("pre", { tabindex: "0", "aria-label": "Code" }, shown), button);
}

/** The change from an earlier number, "–" if it is not known; `better` (`up`, `down`, `none`) is the
    direction that has the colour of good. */
export function told(element, now, before, better) {
  const shown = change(now, before) ?? "–";
  const way = { "+": "up", "-": "down" }[shown[0]];
  text(element, shown);
  element.classList.toggle("gain", Boolean(way) && better === way);
  element.classList.toggle("loss", Boolean(way) && better !== way && better !== "none");
  element.classList.toggle("none", shown === "–");
  return shown;
}

/** Let a number that has just changed light up for a moment. */
export function tick(element) {
  element.classList.remove("ticked");
  void element.offsetWidth; // so that the animation begins anew
  element.classList.add("ticked");
}

/** The choice between totals and running totals, which is `cumulative` in the address. */
export function totalsChoice(query) {
  return choice("Chart", [[null, "Totals"], ["1", "Running totals"]], query.get("cumulative"), (value) => {
    const next = new URLSearchParams(query);
    next.delete("cumulative");
    if (value) next.set("cumulative", value);
    location.hash = `${location.hash.split("?")[0]}?${next}`;
  });
}
