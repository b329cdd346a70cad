// Markdown, a subset, built as elements. There is no HTML in it: tags are shown as the text they are.

import { codeBlock } from "./highlight.js";
import { h, safeLink, textNode } from "../draw/dom.js";

const LONGEST = 100000;
const DEEPEST = 8;
const ITEM = /^(\s{0,24})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;
const FENCE = /^\s{0,12}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** A text as an element. */
export function markdown(text) {
  const root = h("div.markdown");
  if (text.length > LONGEST) root.append(h("pre", {}, text));
  else root.append(...blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0));
  return root;
}

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) at++;
    else [nodes[nodes.length], at] = block(lines, at, depth);
  }
  return nodes;
}

// One block that begins at a line; returns it with the line after it.
function block(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [h(`h${Math.min(6, heading[1].length + 1)}`, {}, inline(heading[2])), at + 1];
  if (RULE.test(line)) return [h("hr"), at + 1];
  if (/^\s{0,3}>/.test(line) && depth < DEEPEST) return quote(lines, at, depth);
  if (ITEM.test(line) && depth < DEEPEST) return list(lines, at, depth);
  if (
    line.includes("|") &&
    at + 1 < lines.length &&
    lines[at + 1].includes("-") &&
    DIVIDER.test(lines[at + 1])
  )
    return table(lines, at);
  if (/^ {4}\S/.test(line)) return indented(lines, at);
  return paragraph(lines, at, depth);
}

function fenced(lines, at, [, mark, language]) {
  let end = at + 1;
  const margin = /^\s*/.exec(lines[at])[0].length;
  const closing = (line) => line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], "");
  while (end < lines.length && !closing(lines[end])) end++;
  const code = lines
    .slice(at + 1, end)
    .map((line) => line.slice(Math.min(margin, /^\s*/.exec(line)[0].length)));
  return [codeBlock(code.join("\n"), language), end + 1];
}

function indented(lines, at) {
  let end = at;
  while (end < lines.length && (/^ {4}/.test(lines[end]) || !lines[end].trim())) end++;
  return [
    codeBlock(
      lines
        .slice(at, end)
        .map((line) => line.slice(4))
        .join("\n")
        .trimEnd(),
    ),
    end,
  ];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^\s{0,3}>/.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(/^\s{0,3}> ?/, ""));
  return [h("blockquote", {}, blocks(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const [, margin, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const element = h(ordered ? "ol" : "ul");
  if (ordered && Number.parseInt(mark, 10) !== 1)
    element.setAttribute("start", String(Number.parseInt(mark, 10)));
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length !== margin.length || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    const width = item[1].length + item[2].length + 1;
    for (end++; end < lines.length; end++) {
      const line = lines[end];
      const indent = /^\s*/.exec(line)[0].length;
      if (line.trim() && indent < width && (ITEM.test(line) || indent <= margin.length)) break;
      if (!line.trim() && !/^\s/.test(lines[end + 1] ?? "")) break;
      inner.push(line.slice(Math.min(width, indent)));
    }
    element.append(listItem(inner, depth));
    while (
      end < lines.length &&
      !lines[end].trim() &&
      ITEM.exec(lines[end + 1] ?? "")?.[1].length === margin.length
    )
      end++;
  }
  return [element, end];
}

function listItem(inner, depth) {
  const box = /^\[([ xX])\]\s+(.*)$/.exec(inner[0]);
  if (box) inner[0] = box[2];
  const nodes = blocks(inner, depth + 1);
  // A single paragraph needs no box of its own.
  const content = nodes[0]?.tagName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
  return h("li", {}, box ? h("span.tick", {}, box[1] === " " ? "☐ " : "☑ ") : null, content);
}

function cells(line) {
  return line
    .trim()
    .replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim());
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  const sides = cells(lines[at + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left",
  );
  const row = (line, tag) =>
    h(
      "tr",
      {},
      cells(line).map((cell, index) =>
        h(tag, { style: { "text-align": sides[index] ?? "left" } }, inline(cell)),
      ),
    );
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  return [
    h("div.table", {}, h("table", {}, h("thead", {}, row(lines[at], "th")), h("tbody", {}, body))),
    end,
  ];
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  const stops = (line) =>
    !line.trim() ||
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    /^\s{0,3}>/.test(line) ||
    (ITEM.test(line) && depth < DEEPEST);
  while (end < lines.length && !stops(lines[end])) end++;
  const text = lines
    .slice(at, end)
    .map((line) => line.trimStart())
    .join("\n");
  return [h("p", {}, inline(text)), end];
}

const INLINE =
  /\\([\\`*_{}[\]()#+.!|~>-])|(`+)([^`]|[^`][\s\S]{0,1000}?[^`])\2(?!`)|(!?)\[([^[\]]{0,1000})\]\(([^()\s]{1,2000}(?:\([^()\s]{0,200}\)[^()\s]{0,200})?)(?:\s+"[^"]{0,300}")?\)|(\*\*|__|~~)(?=\S)([\s\S]{1,1000}?\S)\7|([*_])(?=\S)([^*_]{1,600}?)(?<=\S)\9(?!\w)|(https?:\/\/[^\s<>"'`)\]]{1,2000}[^\s<>"'`)\].,;:!?])|( {2,}\n)/g;

/** The inside of a line, as nodes. */
export function inline(text, depth = 0) {
  if (depth > DEEPEST) return [textNode(text)];
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    // snake_case is no emphasis
    if ((match[9] === "_" || match[7] === "__") && /\w/.test(text[match.index - 1] ?? "")) continue;
    if (match.index < last) continue;
    if (match.index > last) nodes.push(textNode(text.slice(last, match.index)));
    nodes.push(span(match, depth));
    last = match.index + match[0].length;
  }
  nodes.push(textNode(text.slice(last)));
  return nodes;
}

function span(match, depth) {
  const [
    whole,
    escaped,
    tick,
    code,
    bang,
    label,
    address,
    strong,
    strongText,
    light,
    lightText,
    bare,
    lineBreak,
  ] = match;
  if (escaped) return textNode(escaped);
  if (tick) return h("code", {}, code.trim() || code);
  if (address !== undefined)
    return link(bang ? `🖼 ${label || address}` : inline(label, depth + 1), address);
  if (strong) return h(strong === "~~" ? "s" : "strong", {}, inline(strongText, depth + 1));
  if (light) return h("em", {}, inline(lightText, depth + 1));
  if (bare) return link(bare, bare);
  return lineBreak ? h("br") : textNode(whole);
}

function link(content, address) {
  const safe = /^https?:/i.test(address) || /^mailto:/i.test(address) ? safeLink(address) : null;
  if (!safe) return h("span.unlinked", { title: `not followed: ${address}` }, content);
  return h("a", { href: safe, target: "_blank", rel: "noopener noreferrer", title: safe }, content);
}
