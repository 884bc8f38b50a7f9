// Makes and changes HTML and SVG elements, announces texts to screen readers, delays calls. Text is
// always text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const LONG = 15; // characters: twelve digits with their commas stay in one line

/** An element: h("a", { class: "x", href: "#/", onclick: f }, "text", child, [children], null). */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An element of SVG, with the arguments of `h`. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Replace what is in an element. */
export function put(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

/** Change the text only where it differs, so that selections and screen readers are left alone. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** Show a number that is a text already: a long one may be wrapped between its groups of digits. */
export function amount(element, value) {
  if (element.textContent === value) return;
  put(element, value.length > LONG ? value.split(/(?<=,)/).flatMap((group, i) => (i ? [document.createElement("wbr"), group] : [group])) : value);
}

/** Say something to screen readers, once, when they have time. */
export function announce(message) {
  text(document.getElementById("announce"), message);
}

/** A function that calls `f` once, when it was not called itself for `ms` milliseconds. */
export function settled(f, ms) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => f(...given), ms);
  };
}

/** A function that calls `f` when `ms` milliseconds have passed since the last `done()`. Further calls wait
    for the same. `f` has to call `done()`, else it is never called again; `stop()` cancels a waiting call. */
export function paced(f, ms) {
  let last = -Infinity;
  let timer = 0;
  const call = () => (timer ||= setTimeout(f, Math.max(0, last + ms - Date.now())));
  call.done = () => {
    call.stop();
    last = Date.now();
  };
  call.stop = () => {
    clearTimeout(timer);
    timer = 0;
  };
  return call;
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}
