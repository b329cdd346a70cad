// Builds elements of the page. Strings become text nodes: nothing in the viewer turns a string into
// markup.

const SVG = "http://www.w3.org/2000/svg";
const FORBIDDEN = new Set(["script", "iframe", "object", "embed", "link", "meta", "base", "style"]);
const ATTRIBUTES = new Set([
  "alt",
  "aria-current",
  "aria-expanded",
  "aria-label",
  "aria-live",
  "aria-selected",
  "aria-hidden",
  "autocomplete",
  "checked",
  "colspan",
  "disabled",
  "download",
  "for",
  "hidden",
  "href",
  "id",
  "list",
  "max",
  "min",
  "name",
  "placeholder",
  "rel",
  "role",
  "rowspan",
  "rows",
  "selected",
  "start",
  "src",
  "spellcheck",
  "step",
  "tabindex",
  "target",
  "title",
  "type",
  "value",
  "open",
]);

/** An element: `h("div.note", {onclick: f}, "text", child)`. Attributes outside a short list throw. */
export function h(spec, properties = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  if (FORBIDDEN.has(tag)) throw new Error(`<${tag}> is forbidden`);
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) set(element, name, value);
  return add(element, ...children);
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on") && typeof value === "function")
    element.addEventListener(name.slice(2), value);
  else if (name === "class") element.className += ` ${value}`;
  else if (name === "style")
    for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
  else if (name === "data")
    for (const [key, text] of Object.entries(value)) element.dataset[key] = text;
  else if (name === "href") element.setAttribute("href", safeLink(value) ?? "#");
  else if (name === "src") element.setAttribute("src", value.startsWith("blob:") ? value : "");
  else if (ATTRIBUTES.has(name)) element.setAttribute(name, value === true ? "" : String(value));
  else throw new Error(`the attribute ${name} is not allowed`);
}

// Bidirectional controls. With one of them, source code can look different from what it runs.
const REORDERING = /[\u202a-\u202e\u2066-\u2069]/g;

/** A text node in which bidirectional controls are escaped, so that they reorder nothing. */
export function textNode(value) {
  const text = String(value).replace(REORDERING, (mark) => `\\u${mark.charCodeAt(0).toString(16)}`);
  return document.createTextNode(text);
}

/** Appends children; strings become text. */
export function add(element, ...children) {
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : textNode(child));
  }
  return element;
}

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) throw new Error("no handlers in pictures");
    if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  return add(element, ...children);
}

/** An entry of one of the page's own tables. The name may come from a record. */
export function own(table, name) {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, ...children);
}

/** The address if it is safe to follow (a web page, mail or a place in this page), else null. */
export function safeLink(text) {
  const address = String(text).trim();
  if (address.startsWith("#/")) return address;
  return /^(https?:\/\/|mailto:)[^\s]+$/i.test(address) ? address : null;
}

const ICONS = {
  back: "M15 5l-7 7 7 7",
  search: "M10.500 17a6.500 6.500 0 100-13 6.500 6.500 0 000 13zm5-1.500L21 21",
  sun: "M12 4V2m0 20v-2m8-8h2M2 12h2m13.700-5.700l1.400-1.400M4.900 19.100l1.400-1.400m0-11.400L4.900 4.900m14.200 14.200l-1.400-1.400M12 16a4 4 0 100-8 4 4 0 000 8z",
  moon: "M20 14.500A8.500 8.500 0 019.500 4a8.500 8.500 0 1010.500 10.500z",
  share: "M12 15V3m0 0L8 7m4-4l4 4M5 12v8h14v-8",
  stop: "M7 7h10v10H7z",
  send: "M4 12l16-8-6 16-3-7-7-1z",
  think: "M12 3a6 6 0 00-3.500 10.900V17h7v-3.100A6 6 0 0012 3zM9.500 20.500h5",
  user: "M12 12a4 4 0 100-8 4 4 0 000 8zm-7 8c.500-4 3.500-6 7-6s6.500 2 7 6",
  alert: "M12 4l9 16H3L12 4zm0 6v5m0 2.500v.500",
  flag: "M6 21V4h12l-3 4 3 4H6",
  down: "M6 9l6 6 6-6",
  compare: "M4 5h6v14H4zm10 0h6v14h-6z",
  check: "M5 13l4 4L19 7",
  close: "M6 6l12 12M18 6L6 18",
  gate: "M4 20V9l8-5 8 5v11m-11 0v-6h6v6",
};

/** A small icon. */
export function icon(name) {
  return s(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" },
    s("path", { d: ICONS[name] }),
  );
}
