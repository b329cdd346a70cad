// Dialogs and short messages.

import { fill, h, icon } from "./dom.js";

/** A dialog with a title; `build(close)` returns its content. */
export function dialog(title, build) {
  const element = h("dialog");
  const close = () => element.close();
  add(element, title, close, build(close));
  document.body.append(element);
  element.addEventListener("close", () => element.remove());
  element.addEventListener("click", (event) => event.target === element && close());
  element.showModal();
  return element;
}

function add(element, title, close, content) {
  fill(
    element,
    h(
      "div.dialog",
      {},
      h(
        "header",
        {},
        h("h2", {}, title),
        h("button.ghost", { onclick: close, "aria-label": "Close" }, icon("close")),
      ),
      content,
    ),
  );
}

/** A message at the edge of the page that disappears after five seconds. */
export function toast(text, kind = "") {
  const element = h("div.toast", { class: kind, role: "status" }, text);
  document.body.append(element);
  setTimeout(() => element.remove(), 5000);
}

const KEYS = [
  ["j / k", "next and previous entry"],
  ["g / G", "to the beginning, to the end (and follow)"],
  ["/", "find"],
  ["n / N", "next and previous hit"],
  ["e", "detail: compact, normal, full"],
  ["1 … 5", "panels beside the transcript"],
  ["s", "share"],
  ["d", "dark or light"],
  ["Esc", "back to all runs"],
  ["?", "this list"],
];

/** Shows the keyboard shortcuts. */
export function showHelp() {
  dialog("Keys", () =>
    h(
      "dl.keys",
      {},
      KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]),
    ),
  );
}
