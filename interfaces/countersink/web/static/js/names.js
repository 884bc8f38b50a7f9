// How names, keys and messages are shown: invisible characters as `[U+200B]`, direction of text.

import { h } from "./dom.js";

/** Control and format characters (bidi controls, zero-width ones), spaces, and what has no glyph. */
const UNSEEN = /^[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]$/u;
const MARK = /^\p{M}$/u;

/** A text with its invisible characters written as "[U+200B]"; spaces only where HTML would not show
    them, at the ends and after another space. So no two texts look the same because of invisible
    characters. Letters that look alike stay. */
export function visible(value) {
  return parts(value).map(([shown]) => shown).join("");
}

/** The same as an element, with a direction of writing of its own; the escapes are marked. */
export function name(value) {
  const found = parts(value);
  return h("bdi", null, runs(found).map(([shown, escape]) => (escape ? h("span", { class: "escape" }, shown) : shown)));
}

/** [shown, whether it is an escape] of each character. */
function parts(value) {
  const characters = [...value];
  // "á" is one character or two, which are different keys and look the same: of the latter, the
  // mark is written out.
  const decomposed = value !== value.normalize("NFC");
  return characters.map((one, i) => {
    const escape =
      one === " "
        ? i === 0 || i === characters.length - 1 || characters[i - 1] === " "
        : one === "["
          ? characters[i + 1] === "U" && characters[i + 2] === "+" // else it would look like an escape
          : MARK.test(one)
            ? decomposed || i === 0 || UNSEEN.test(one)
            : UNSEEN.test(one) || (decomposed && one !== one.normalize("NFC"));
    return escape ? [`[U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`, true] : [one, false];
  });
}

/** The same with neighbours of one kind, escapes or not, joined. */
function runs(found) {
  const joined = [];
  for (const [shown, escape] of found) {
    if (joined.length && joined.at(-1)[1] === escape) joined.at(-1)[0] += shown;
    else joined.push([shown, escape]);
  }
  return joined;
}
