// Gate calls over time: when each arrived, how long it waited and how long it ran.

import { BlobRef, Cut } from "../data/record.js";
import { bytes, count, duration, since } from "../text/format.js";
import { fill, h } from "../draw/dom.js";
import { VirtualList } from "../draw/virtual.js";
import { callPictures } from "./entry.js";
import { decode } from "../data/arrays.js";
import { longText } from "../text/long.js";
import { ticks } from "../draw/lines.js";
import { tree } from "../draw/tree.js";

/** The panel. `show(item)` brings the tool call that made a call into view. */
export class Waterfall {
  constructor(model, { fetcher, palette, show }) {
    this.model = model;
    this.view = { fetcher };
    this.palette = palette;
    this.show = show;
    this.open = new Set();
    this.span = [0, 1];
    this.summary = h("div.facts");
    this.functions = h("div.functions");
    this.axis = h("div.axis", { "aria-hidden": "true" });
    this.scroller = h("div.waterfall-scroll", { tabindex: "0", "aria-label": "gate calls" });
    this.empty = h("div.empty", {}, "No gate calls yet.");
    this.element = h(
      "div.panel.waterfall",
      {},
      this.summary,
      this.functions,
      this.empty,
      this.axis,
      this.scroller,
    );
    this.list = new VirtualList(this.scroller, {
      key: (call) => call.key,
      estimate: 30,
      render: (call) => this.#row(call),
      version: (call) => `${this.open.has(call.key)}/${this.span.join()}`,
    });
  }

  // The time from the first to the last call, without the time before the first.
  #span() {
    const { calls } = this.model;
    if (!calls.length) return [0, 1];
    const from = calls.reduce((least, call) => Math.min(least, call.started), Infinity);
    const to = calls.reduce((most, call) => Math.max(most, call.time), 0);
    return [from, Math.max(to, from + 0.001)];
  }

  update() {
    const { calls } = this.model;
    this.span = this.#span();
    this.empty.hidden = calls.length > 0;
    this.axis.hidden = this.summary.hidden = !calls.length;
    const [from, to] = this.span;
    const start = this.model.start;
    const sum = (field) => calls.reduce((total, call) => total + (Number(call[field]) || 0), 0);
    const gpu = calls.some((call) => call.gpu !== null) ? sum("gpu") : null;
    const refused = calls.filter((call) => !call.ok).length;
    fill(
      this.summary,
      fact("calls", count(calls.length)),
      fact("run", duration(sum("run"))),
      gpu === null ? null : fact("GPU", duration(gpu)),
      fact("queued", duration(sum("queue"))),
      fact("in", bytes(sum("bytes_in"))),
      fact("out", bytes(sum("bytes_out"))),
      refused ? fact("failed", count(refused), "bad") : null,
    );
    fill(
      this.axis,
      ticks(from - start, to - start, 5).map((at) =>
        h("span.axis-tick", { style: { left: `${share(at + start, from, to)}%` } }, since(at)),
      ),
    );
    this.#byFunction();
    this.list.setItems(calls);
  }

  // The time that each function took, the longest first.
  #byFunction() {
    const groups = new Map();
    for (const call of this.model.calls) {
      const group = groups.get(call.function) ?? { name: String(call.function), calls: 0, run: 0 };
      groups.set(
        call.function,
        Object.assign(group, { calls: group.calls + 1, run: group.run + call.run }),
      );
    }
    for (const name of groups.keys()) this.palette.of(String(name)); // in order of appearance
    const total = [...groups.values()].reduce((sum, group) => sum + group.run, 0) || 1;
    const ordered = [...groups.values()].sort((a, b) => b.run - a.run).slice(0, 12);
    fill(
      this.functions,
      groups.size > 1
        ? [
            h(
              "div.shares",
              {},
              ordered.map((group) =>
                h("span", {
                  title: group.name,
                  style: {
                    width: `${(group.run / total) * 100}%`,
                    background: this.palette.of(group.name),
                  },
                }),
              ),
            ),
            h(
              "div.function-names",
              {},
              ordered.map((group) =>
                h(
                  "span",
                  {},
                  h("span.swatch", { style: { background: this.palette.of(group.name) } }),
                  group.name,
                  h("span.of", {}, ` ${count(group.calls)} × ${duration(group.run / group.calls)}`),
                ),
              ),
            ),
          ]
        : null,
    );
  }

  #row(call) {
    const [from, to] = this.span;
    const left = share(call.started, from, to);
    const waited = share(call.started + call.queue, from, to) - left;
    const ran = share(call.time, from, to) - left - waited;
    const colour = this.palette.of(String(call.function));
    const toggle = () => (
      this.open.has(call.key) ? this.open.delete(call.key) : this.open.add(call.key),
      this.list.refresh(call.key)
    );
    const row = h(
      "button.call",
      {
        class: call.ok ? "" : "failed",
        "aria-expanded": String(this.open.has(call.key)),
        onclick: toggle,
        title: `${call.function}: queued ${duration(call.queue)}, ran ${duration(call.run)}`,
      },
      h(
        "span.call-name",
        {},
        h("span.swatch", { style: { background: colour } }),
        String(call.function),
      ),
      h(
        "span.call-track",
        {},
        h("span.call-queue", {
          style: { left: `${left}%`, width: `${Math.max(waited, 0)}%`, background: colour },
        }),
        h("span.call-run", {
          style: {
            left: `${left + waited}%`,
            width: `max(2px, ${ran}%)`,
            background: call.ok ? colour : "var(--bad)",
          },
        }),
      ),
      h("span.call-batch", { title: "calls in one batch" }, call.batch > 1 ? `×${call.batch}` : ""),
      h("span.call-bytes", {}, bytes((call.bytes_in || 0) + (call.bytes_out || 0))),
      h("span.call-time", {}, duration(call.run)),
    );
    return this.open.has(call.key) ? h("div.call-open", {}, row, this.#details(call)) : row;
  }

  #details(call) {
    const facts = [
      ["interface", call.interface],
      ["caller", call.caller],
      ["outcome", call.outcome],
      ["at", since(call.started - this.model.start)],
      ["queued", duration(call.queue)],
      ["ran", duration(call.run)],
      call.gpu === null ? null : ["GPU", duration(call.gpu)],
      ["batch", call.batch || "–"],
      ["in / out", `${bytes(call.bytes_in || 0)} / ${bytes(call.bytes_out || 0)}`],
    ];
    return h(
      "div.call-details",
      {},
      h(
        "div.facts",
        {},
        facts.filter(Boolean).map(([name, value]) => fact(name, String(value ?? ""))),
      ),
      call.item
        ? h("button.small", { onclick: () => this.show(call.item) }, "show where it was made")
        : null,
      h("div.side-name", {}, "arguments"),
      this.#value(call.arguments, call.argument_buffers),
      h("div.side-name", {}, call.ok ? "result" : "error"),
      this.#value(call.result, call.result_buffers),
      callPictures(call, this.view),
    );
  }

  #value(text, buffers) {
    if (text instanceof BlobRef || text instanceof Cut)
      return longText(text, this.view.fetcher, (found) => h("pre.output", {}, found));
    const found = decode(text, buffers);
    return found === null
      ? h("pre.output", {}, String(text ?? ""))
      : h(
          "div.json",
          {},
          tree(Array.isArray(found) ? compact(found) : (found.result ?? found.error ?? found), 2),
        );
  }

  close() {
    this.list.close();
  }
}

// `[args, kwargs]` without the empty parts.
function compact([positional, named]) {
  if (named && typeof named === "object" && Object.keys(named).length)
    return positional?.length ? { args: positional, ...named } : named;
  return positional ?? [];
}

function share(time, from, to) {
  return ((time - from) / (to - from)) * 100;
}

/** A number with its name. */
export function fact(name, value, kind = "") {
  return h(
    "span.fact",
    { class: kind },
    h("span.fact-name", {}, name),
    h("span.fact-value", {}, value),
  );
}
