// HTML that a notebook's cell put out, shown by its meaning: tables, lists, emphasis.
//
// The markup is read here, token by token, and only elements from a short list are made, with no
// attributes but spans of cells. The browser's own parser never sees the text.

import { h } from "../draw/dom.js";

const KEPT = new Set([
  "table",
  "thead",
  "tbody",
  "tfoot",
  "tr",
  "th",
  "td",
  "caption",
  "p",
  "div",
  "span",
  "b",
  "i",
  "em",
  "strong",
  "u",
  "s",
  "code",
  "pre",
  "br",
  "hr",
  "ul",
  "ol",
  "li",
  "h1",
  "h2",
  "h3",
  "h4",
  "h5",
  "h6",
  "sub",
  "sup",
  "blockquote",
  "dl",
  "dt",
  "dd",
  "small",
  "mark",
]);
const SKIPPED = new Set([
  "script",
  "style",
  "template",
  "noscript",
  "iframe",
  "object",
  "svg",
  "math",
  "title",
  "head",
  "textarea",
  "select",
  "xmp",
]);
const VOID = new Set(["br", "hr", "img", "input", "meta", "link", "col", "wbr", "source"]);
const TOKEN =
  /<!--[\s\S]*?(?:-->|$)|<(\/?)([a-zA-Z][\w-]*)((?:[^<>"']|"[^"<]{0,500}"|'[^'<]{0,500}')*)>|<![^>]*>/g;
const ENTITY =
  /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp|hellip|middot|times|ndash|mdash|minus));/g;
const NAMED = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  hellip: "…",
  middot: "·",
  times: "×",
  ndash: "–",
  mdash: "—",
  minus: "−",
};
const LONGEST = 300000;
const DEEPEST = 60;

/** HTML as an element that holds nothing but its harmless part. */
export function harmless(text) {
  const root = h("div.rendered-html");
  let [last, skipping] = [0, ""];
  const open = [{ tag: "", element: root }];
  const source = text.slice(0, LONGEST);
  for (const match of source.matchAll(TOKEN)) {
    if (!skipping) write(open, source.slice(last, match.index));
    last = match.index + match[0].length;
    const tag = match[2]?.toLowerCase();
    if (!tag) continue;
    if (skipping) {
      if (match[1] && tag === skipping) skipping = "";
    } else if (SKIPPED.has(tag)) {
      if (!match[1]) skipping = tag;
    } else if (match[1]) shut(open, tag);
    else start(open, tag, match[3]);
  }
  if (!skipping) write(open, source.slice(last));
  return root;
}

function write(open, text) {
  if (!text) return;
  const plain = text.replace(ENTITY, (whole, decimal, hex, name) => {
    if (name) return NAMED[name];
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "";
  });
  open[open.length - 1].element.append(plain);
}

function start(open, tag, attributes) {
  if (!KEPT.has(tag) || open.length > DEEPEST) return;
  if (tag === "tr" || tag === "td" || tag === "th" || tag === "li") closeSiblings(open, tag);
  const properties = {};
  for (const [, name, , value] of attributes.matchAll(
    /\b(colspan|rowspan)\s*=\s*(["']?)(\d{1,3})\2/gi,
  ))
    properties[name.toLowerCase()] = value;
  const element = h(tag, properties);
  open[open.length - 1].element.append(element);
  if (!VOID.has(tag)) open.push({ tag, element });
}

// `<td>` after `<td>`: the first one has ended without saying so.
function closeSiblings(open, tag) {
  const top = open[open.length - 1].tag;
  const cell = (name) => name === "td" || name === "th";
  if (top === tag || (cell(top) && cell(tag))) open.pop();
}

function shut(open, tag) {
  for (let index = open.length - 1; index > 0; index--) {
    if (open[index].tag === tag) {
      open.length = index;
      return;
    }
  }
}
