// Turns fragments into elements. A fragment is text that the server rendered as JSON, not as markup.

import { fill, h, safeLink, textNode } from "../draw/dom.js";
import { longText } from "./long.js";

const MATH = "http://www.w3.org/1998/Math/MathML";
const MATH_ATTRIBUTES = new Set(
  "display stretchy fence separator mathvariant linethickness width columnalign".split(" "),
);

/** A fragment as nodes. */
export function build(fragment, inMath = false) {
  return fragment.map((node) => (typeof node === "string" ? textNode(node) : element(node, inMath)));
}

function element([tag, attributes, ...children], inMath) {
  if (inMath || tag === "math") return formula(tag, attributes, build(children, true));
  const content = build(children);
  if (tag === "a") return link(content, attributes.href ?? "");
  if (tag === "table") return h("div.table", {}, h("table", {}, content));
  if (attributes.class === "code") return withCopy(h("div.code", {}, content));
  return h(tag, attributes, content);
}

function formula(tag, attributes, content) {
  const found = document.createElementNS(MATH, tag);
  for (const [name, value] of Object.entries(attributes))
    if (MATH_ATTRIBUTES.has(name)) found.setAttribute(name, value);
  found.append(...content);
  return found;
}

function link(content, address) {
  const safe = /^(https?|mailto):/i.test(address) ? safeLink(address) : null;
  if (!safe) return h("span.unlinked", { title: `not followed: ${address}` }, content);
  return h("a", { href: safe, target: "_blank", rel: "noopener noreferrer", title: safe }, content);
}

/** Code that is not part of a Markdown text, with a button that copies it. */
export function codeBlock(content) {
  return withCopy(h("div.code", {}, h("pre", { tabindex: "0" }, h("code", {}, content))));
}

function withCopy(block) {
  const copy = h("button.copy", { title: "Copy", onclick: () => copyText(block, copy) }, "copy");
  block.append(copy);
  return block;
}

async function copyText(block, button) {
  try {
    await navigator.clipboard.writeText(block.querySelector("pre").textContent);
    button.textContent = "copied";
  } catch {
    button.textContent = "not allowed";
  }
  setTimeout(() => (button.textContent = "copy"), 1200);
}

/** The element around formatted Markdown. */
export function markdown(nodes) {
  return h("div.markdown", {}, nodes);
}

function plainly(text) {
  return h("div.markdown.plain", {}, text);
}

/**
 * A recorded text, formatted. `place` has `fetcher`, `kind`, `at` and `field`. `plain(text)` draws
 * the text until its fragment arrives, or if there is no fragment.
 */
export function rich(value, place, { plain = plainly, dress = markdown } = {}) {
  const box = h("div");
  const { fetcher, kind, at, field } = place;
  const unformatted = () => fill(box, longText(value, fetcher, plain));
  const show = (found) =>
    found[field] ? fill(box, dress(build(found[field]))) : unformatted();
  const found = fetcher.fragments(kind, at);
  if (found instanceof Promise) {
    if (typeof value === "string") unformatted();
    else fill(box, h("div.wait", {}, "loading…"));
    found.then(show, unformatted);
  } else show(found);
  return box;
}
