// A JSON value as a tree that opens level by level.

import { BlobRef, Cut } from "../data/record.js";
import { NdArray } from "../data/arrays.js";
import { bytes } from "../text/format.js";
import { h } from "./dom.js";

const MOST = 200;

/** The tree; `open` levels are open at first. */
export function tree(value, open = 1) {
  if (value instanceof Cut)
    return h(
      "span",
      {},
      tree(value.kept, open),
      h("span.tree-note", {}, ` … ${value.count.toLocaleString("en")} in all`),
    );
  if (value instanceof BlobRef) return h("span.tree-note", {}, `‹${bytes(value.size)}›`);
  if (value instanceof NdArray)
    return h(
      "span.tree-note",
      {},
      `array ${value.typeName} [${value.shape.map((side) => side ?? "?").join(", ")}]`,
    );
  if (value === null || typeof value !== "object") return leaf(value);
  const entries = Array.isArray(value)
    ? value.map((item, index) => [index, item])
    : Object.entries(value);
  const [left, right] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return h("span", {}, left + right);
  if (
    entries.length <= 8 &&
    entries.every(
      ([, item]) => (item === null || typeof item !== "object") && String(item).length < 24,
    )
  ) {
    return h(
      "span",
      {},
      left,
      entries.map(([key, item], index) => [
        index ? ", " : "",
        Array.isArray(value) ? null : [h("span.code-property", {}, String(key)), ": "],
        leaf(item),
      ]),
      right,
    );
  }
  const details = h("details.tree", {}, h("summary", {}, `${left} ${entries.length} ${right}`));
  const fillIn = () => {
    if (details.childElementCount > 1) return;
    details.append(
      h(
        "div.tree-body",
        {},
        entries
          .slice(0, MOST)
          .map(([key, item]) =>
            h("div", {}, h("span.code-property", {}, String(key)), ": ", tree(item, open - 1)),
          ),
        entries.length > MOST ? h("div.tree-note", {}, `and ${entries.length - MOST} more`) : null,
      ),
    );
  };
  details.addEventListener("toggle", fillIn);
  if (open > 0) {
    details.open = true;
    fillIn();
  }
  return details;
}

function leaf(value) {
  if (typeof value === "string")
    return h(
      "span.code-string",
      {},
      value.length > 2000 ? `${JSON.stringify(value.slice(0, 2000))}…` : JSON.stringify(value),
    );
  return h(`span.code-${typeof value === "number" ? "number" : "keyword"}`, {}, String(value));
}
