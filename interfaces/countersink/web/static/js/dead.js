// Dead letters in the system's view: list, Retry and Drop with their questions and results; what
// each reason says comes from the server (`runtime/dead_letter.py`).

import { get, post } from "./api.js";
import { announce, h, put } from "./dom.js";
import { moment, whole } from "./format.js";
import { visible } from "./names.js";
import { choice, failure, sure } from "./parts.js";

const FIRST_DEAD = 50;
const MOST_DEAD = 500;
const UNKNOWN = { headline: "It could not be counted", explanation: "The details say why.", remedy: "Retry it once its cause is mended, or drop it.", maybe_counted: false };

/** `done()` is called when something was retried or dropped. */
export function deadLetters(app, done) {
  let reason = null;
  let byReason = {};
  let explained = {};
  let limit = FIRST_DEAD;
  let known = "";
  let asked = 0;

  const said = h("div", { role: "status" });
  const actions = h("div", { class: "controls" });
  const list = h("ul", { class: "letters" });
  const more = h("button", { type: "button", hidden: true, onclick: () => ((limit = MOST_DEAD), load()) }, "Show more");
  const element = h(
    "section",
    { class: "dead", "aria-labelledby": "dead-title" },
    h("h2", { id: "dead-title" }, "Dead letters"),
    said,
    actions,
    list,
    more,
  );

  /** What a reason means; a newer version may have written one that this server does not know. */
  function reasonOf(code) {
    return Object.hasOwn(explained, code) ? explained[code] : UNKNOWN;
  }

  async function load() {
    const turn = ++asked;
    try {
      const found = await get("/v1/dead", { reason, limit });
      if (turn !== asked) return undefined; // something else was chosen meanwhile
      byReason = found.by_reason;
      explained = found.reasons;
      known = JSON.stringify([byReason, found.not_kept]);
      if (reason && !byReason[reason]) {
        reason = null;
        return load();
      }
      show(found);
    } catch (error) {
      if (turn !== asked) return undefined;
      put(list);
      put(actions, failure(error, load));
    }
    return undefined;
  }

  function show({ rows, total, not_kept }) {
    const reasons = Object.entries(byReason);
    const lost = Object.entries(not_kept);
    const admin = app.may("admin");
    const number = reason ? byReason[reason] : total;
    // Dead letters that come later were not seen: with `most`, the server refuses then.
    const which = { ...(reason ? { reason } : { all: true }), most: number };
    put(
      actions,
      total === 0 && lost.length === 0 && h("p", { class: "soft" }, "None: all rows could be counted."),
      lost.map(([name, n]) => h("p", { class: "soft" }, `${reasonOf(name).headline}: ${whole(n)} more, which were not kept.`)),
      reasons.length > 1 &&
        choice("Reasons", [[null, `All ${whole(total)}`], ...reasons.map(([name, n]) => [name, `${reasonOf(name).headline} ${whole(n)}`])], reason, (value) => {
          reason = value;
          limit = FIRST_DEAD;
          // Until the answer is there, these buttons name the former choice.
          for (const button of actions.querySelectorAll(".buttons button")) button.disabled = true;
          load();
        }),
      total > 0 &&
        admin &&
        h("span", { class: "buttons" }, [
          h("button", { type: "button", onclick: () => retry(which, number) }, number === 1 ? "Retry it…" : `Retry ${reason ? "these" : "all"} ${whole(number)}…`),
          h("button", { type: "button", class: "danger", onclick: () => drop(which, number) }, "Drop…"),
        ]),
      total > 0 && !admin && h("p", { class: "soft" }, "To retry or drop them, log in with a key that has the scope admin."),
    );
    put(list, rows.map((row) => letter(row, admin && total > 1)));
    more.hidden = rows.length < limit || limit === MOST_DEAD;
  }

  function letter(row, own) {
    const { headline, explanation, remedy } = reasonOf(row.reason);
    return h(
      "li",
      null,
      h("p", { class: "what" }, h("strong", null, headline), " ", h("span", { class: "soft number" }, moment(row.created)), own && [
        h("span", { class: "buttons" }, [
          h("button", { type: "button", class: "small", "aria-label": `Retry ${row.ref}`, onclick: () => retry({ refs: [row.ref] }, 1, row.reason) }, "Retry…"),
          h("button", { type: "button", class: "small danger", "aria-label": `Drop ${row.ref}`, onclick: () => drop({ refs: [row.ref] }, 1) }, "Drop…"),
        ]),
      ]),
      h("p", null, `${explanation} `, row.truncated ? "It was stored incompletely and cannot be retried: drop it." : remedy),
      h("details", null, [
        h("summary", null, "Details"),
        h("p", null, h("code", null, row.reason), ": ", visible(row.detail)),
        h("pre", { tabindex: "0", "aria-label": "Payload" }, visible(row.payload)),
        h("p", { class: "soft" }, `${row.ref}, from ${visible(row.stream)}, first sent ${moment(row.at)}`),
      ]),
    );
  }

  async function retry(which, number, why = which.reason) {
    const maybe = why && reasonOf(why).maybe_counted;
    const them = number === 1 ? "it" : `these ${whole(number)}`;
    const question = maybe
      ? `${reasonOf(why).headline}: ${number === 1 ? "this row" : "these rows"} may be counted already. Count ${them} anyway?`
      : `Retry ${number === 1 ? "this dead letter" : `${them} dead letters`}? What can be counted now is added to its counter and leaves this list; the rest stays.`;
    if (!(await sure(question, maybe ? "Count" : "Retry"))) return;
    await act(async () => {
      const result = await post("/v1/dead/retry", which);
      const parts = [`Counted ${whole(result.rows)} ${result.rows === 1 ? "row" : "rows"}`];
      if (result.failed) parts.push(`${whole(result.failed)} failed again and stay`);
      if (result.left_out) parts.push(`${whole(result.left_out)} that may be counted already were left out: choose their reason to retry them`);
      return [`${parts.join("; ")}.`, result.failed > 0];
    });
  }

  async function drop(which, number) {
    if (!(await sure(`Drop ${number === 1 ? "this dead letter" : `these ${whole(number)} dead letters`} for good? ${number === 1 ? "Its amount is" : "Their amounts are"} never counted.`, "Drop", "danger"))) return;
    await act(async () => [`Dropped ${whole((await post("/v1/dead/drop", which)).dropped)}.`, false]);
  }

  async function act(work) {
    for (const button of element.querySelectorAll("button")) button.disabled = true;
    try {
      const [message, bad] = await work();
      put(said, h("p", { class: `notice ${bad ? "warn" : "good"}` }, message));
      announce(message);
    } catch (error) {
      put(said, failure(error, null));
    }
    for (const button of element.querySelectorAll("button")) button.disabled = false;
    await load();
    done();
  }

  load();
  return {
    element,
    /** Compare the numbers in the system's state with those shown; load again if they differ. */
    known(reasons, notKept) {
      if (reasons && JSON.stringify([reasons, notKept]) !== known && !document.querySelector("dialog[open]")) load();
    },
  };
}
