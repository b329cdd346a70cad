// Calls that both runs made with the same arguments, with their results side by side.

import { BlobRef, textOf } from "../data/record.js";
import { count, duration } from "../text/format.js";
import { fill, h } from "../draw/dom.js";
import { callPictures } from "./entry.js";
import { decode } from "../data/arrays.js";
import { tree } from "../draw/tree.js";

const MOST = 200;

/** The panel; `models` and `fetchers` belong to the two runs. */
export class SameCalls {
  constructor(models, fetchers) {
    this.models = models;
    this.fetchers = fetchers;
    this.known = "";
    this.element = h("div.same-calls", { tabindex: "0", "aria-label": "calls of both runs" });
  }

  update() {
    const counts = this.models.map((model) => model.calls.length).join();
    if (counts === this.known) return;
    this.known = counts;
    const pairs = matched(...this.models.map((model) => model.calls));
    const changed = pairs.filter((pair) => !pair.same);
    fill(
      this.element,
      h(
        "p.compare-verdict",
        {},
        `${count(pairs.length)} calls were made with the same arguments in both runs; `,
        `${count(changed.length)} of them gave different results.`,
      ),
      [...changed, ...pairs.filter((pair) => pair.same)]
        .slice(0, MOST)
        .map((pair) => this.#pair(pair)),
    );
  }

  #pair({ calls, same }) {
    const details = h(
      "details.fold.same-call",
      { class: same ? "same" : "" },
      h(
        "summary",
        {},
        h("span.tool-name", {}, String(calls[0].function)),
        h("span.same-arguments", {}, argumentsOf(calls[0]).slice(0, 160)),
        h("span.same-verdict", {}, same ? "same result" : "results differ"),
      ),
    );
    details.addEventListener("toggle", () => {
      if (details.childElementCount > 1) return;
      details.append(
        h(
          "div.compare-row",
          {},
          calls.map((call, side) => h("div.compare-side", {}, this.#result(call, side))),
        ),
      );
    });
    details.open = !same;
    return details;
  }

  #result(call, side) {
    const pictures = call.ok ? callPictures(call, { fetcher: this.fetchers[side] }) : [];
    const value = decode(call.result, call.result_buffers);
    return [
      h("div.side-name", {}, `${String(call.outcome)}, ${duration(call.run)}`),
      pictures,
      pictures.length || !value ? null : h("div.json", {}, tree(value.result ?? value.error, 2)),
    ];
  }
}

// The arguments as in a Python call: `("a text", k=5)`.
function argumentsOf(call) {
  try {
    const [positional, named] = JSON.parse(textOf(call.arguments));
    const words = positional.map((value) => JSON.stringify(value));
    for (const [name, value] of Object.entries(named)) words.push(`${name}=${JSON.stringify(value)}`);
    return `(${words.join(", ")})`;
  } catch {
    // Cut off, or not JSON: show the text as it was recorded.
    return textOf(call.arguments);
  }
}

// Pairs calls by function and arguments. Repeated calls are paired in order.
function matched(left, right) {
  const waiting = new Map();
  for (const call of right) {
    const name = nameOf(call);
    if (!waiting.has(name)) waiting.set(name, []);
    waiting.get(name).push(call);
  }
  const pairs = [];
  for (const call of left) {
    const other = waiting.get(nameOf(call))?.shift();
    if (other)
      pairs.push({ calls: [call, other], same: resultOf(call) === resultOf(other) });
  }
  return pairs;
}

function reference(value) {
  return value instanceof BlobRef ? value.digest : textOf(value);
}

function nameOf(call) {
  return JSON.stringify([
    call.interface,
    call.function,
    reference(call.arguments),
    call.argument_buffers ?? [],
  ]);
}

function resultOf(call) {
  return JSON.stringify([call.outcome, reference(call.result), call.result_buffers ?? []]);
}
