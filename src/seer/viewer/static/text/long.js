// Texts that may be long or in a blob: shows the beginning at once, and the rest on request.

import { BlobRef, Cut, textOf } from "../data/record.js";
import { fill, h } from "../draw/dom.js";
import { bytes } from "./format.js";

const WHOLE = 20000; // characters that are shown at once

/** A text, or a blob with a text, that `render(text)` draws. */
export function longText(value, fetcher, render) {
  const text = textOf(value);
  if (value instanceof BlobRef) {
    if (value.size > 2_000_000) return later(value, fetcher, render);
    const box = h("div.fetched", {}, h("div.wait", {}, `loading ${bytes(value.size)}…`));
    fetcher.text(value).then(
      (whole) => fill(box, longText(whole, fetcher, render)),
      (error) => fill(box, h("div.wait", {}, `not loaded: ${error.message}`)),
    );
    return box;
  }
  if (value instanceof Cut)
    return h(
      "div",
      {},
      render(text),
      h(
        "div.more",
        {},
        `${value.count.toLocaleString("en")} characters; the rest is in the record`,
      ),
    );
  if (text.length <= WHOLE) return render(text);
  const box = h("div", {}, render(text.slice(0, WHOLE)));
  const more = h(
    "button.small",
    { onclick: () => fill(box, render(text)) },
    `show all ${text.length.toLocaleString("en")} characters`,
  );
  box.append(more);
  return box;
}

function later(value, fetcher, render) {
  const box = h("div.fetched");
  const load = async () => {
    fill(box, h("div.wait", {}, "loading…"));
    try {
      fill(box, longText(await fetcher.text(value), fetcher, render));
    } catch (error) {
      fill(box, h("div.wait", {}, `not loaded: ${error.message}`));
    }
  };
  return fill(box, h("button.small", { onclick: load }, `load ${bytes(value.size)}`));
}
