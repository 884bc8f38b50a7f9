// What several views are made of.

import { h } from "./dom.js";

/** A figure with its name: <dt> and <dd> in a <div>. `note` is small, beneath. */
export function figure(name, value, note = null, kind = "") {
  return h("div", { class: `figure ${kind}` }, h("dt", null, name), h("dd", null, value, note && h("small", null, note)));
}

/** Something went wrong, and what to do: try again. */
export function failure(error, again) {
  return h(
    "div",
    { class: "notice bad", role: "alert" },
    h("p", null, error.message || "This should not have happened."),
    again && h("button", { type: "button", onclick: again }, "Try again"),
  );
}

/** Buttons of which one is pressed: `choices` is [[value, text, disabledBecause], …]. */
export function choice(name, choices, now, chosen) {
  return h(
    "div",
    { class: "choice", role: "group", "aria-label": name },
    choices.map(([value, shown, because]) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": value === now ? "true" : "false",
          disabled: Boolean(because),
          title: because || null,
          onclick: () => chosen(value),
        },
        shown,
      ),
    ),
  );
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

/** A number that has just changed lights up for a moment. */
export function tick(element) {
  element.classList.remove("ticked");
  void element.offsetWidth; // so that the animation begins anew
  element.classList.add("ticked");
}
