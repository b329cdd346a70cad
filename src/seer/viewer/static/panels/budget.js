// The limits of a run as bars, and their use over time.

import { bytes, count, dollars, duration, since } from "../text/format.js";
import { fill, h } from "../draw/dom.js";
import { lineChart } from "../draw/lines.js";

const LIMITS = [
  ["turns", "Turns", count],
  ["tool_calls", "Tool calls", count],
  ["seconds", "Time", duration],
  ["tokens", "Tokens", count],
  ["cost_usd", "Cost", dollars],
];

/** The panel. `raise(name, value)` asks for another limit, if that is allowed. */
export class BudgetPanel {
  constructor(model, { raise = null } = {}) {
    this.model = model;
    this.raise = raise;
    this.element = h("div.panel.budget");
  }

  update() {
    const { model } = this;
    const used = this.#used();
    const limits = model.meta.limits ?? {};
    const bars = LIMITS.map(([name, label, format]) =>
      this.#bar(name, label, format, used[name], limits[name]),
    );
    fill(
      this.element,
      h("div.bars-list", {}, bars),
      this.#cost(limits),
      this.#tokens(limits),
      this.#gate(),
    );
  }

  #used() {
    const { model } = this;
    const last = model.usage[model.usage.length - 1];
    const tools = model.items.filter((item) => item.type === "tool_call").length;
    const turns = model.items.reduce((most, item) => Math.max(most, item.turn), 0);
    return {
      turns: model.meta.turns ?? turns,
      tool_calls: model.meta.tool_calls ?? tools,
      seconds: (model.state === "live" ? Date.now() / 1000 : model.end) - model.start,
      tokens: last?.tokens ?? model.meta.tokens ?? 0,
      cost_usd: last?.cost ?? model.meta.cost_usd ?? null,
    };
  }

  #bar(name, label, format, used, allowed) {
    const limited = Number.isFinite(allowed);
    if (!limited && (used === null || used === 0)) return null;
    const part = limited ? Math.min(1, (used ?? 0) / (allowed || 1)) : 0;
    const kind = part > 0.9 ? "bad" : part > 0.7 ? "warn" : "";
    return h(
      "div.limit",
      {},
      h("span.limit-name", {}, label),
      h(
        "span.limit-track",
        { class: limited ? "" : "open" },
        h("span.limit-bar", { class: kind, style: { width: `${part * 100}%` } }),
      ),
      h(
        "span.limit-value",
        {},
        format(used),
        h("span.of", {}, limited ? ` / ${format(allowed)}` : "  no limit"),
      ),
      this.raise && this.model.state === "live"
        ? h(
            "button.small",
            {
              title: `Change the limit on ${label.toLowerCase()}`,
              onclick: () => this.raise(name, label, allowed),
            },
            "change",
          )
        : null,
    );
  }

  #chart(title, points, limit, format) {
    if (points.length < 2) return null;
    const start = this.model.start;
    const series = [
      {
        points: [
          [0, 0],
          ...points.map(([time, value]) => [time - start, value]),
          [this.model.end - start, points[points.length - 1][1]],
        ],
        step: true,
        area: true,
        className: "burn",
      },
    ];
    // A distant limit would flatten the line, so only the caption shows it.
    const near = Number.isFinite(limit) && limit < points[points.length - 1][1] * 3;
    const marks = near ? [{ y: limit, label: `limit ${format(limit)}` }] : [];
    return h(
      "figure.chart-box",
      {},
      h(
        "figcaption",
        {},
        title,
        Number.isFinite(limit)
          ? h("span.of", {}, `  ${format(points[points.length - 1][1])} of ${format(limit)}`)
          : null,
      ),
      lineChart(series, {
        height: 150,
        marks,
        bounds: { x0: 0, y0: 0 },
        formatX: since,
        formatY: format,
        label: title,
      }),
    );
  }

  #cost(limits) {
    return this.#chart(
      "Cost",
      this.model.usage.filter((one) => one.cost !== null).map((one) => [one.time, one.cost]),
      limits.cost_usd,
      dollars,
    );
  }

  #tokens(limits) {
    return this.#chart(
      "Tokens",
      this.model.usage.map((one) => [one.time, one.tokens]),
      limits.tokens,
      count,
    );
  }

  // The use of the gate, compared with the budget of each interface.
  #gate() {
    const { calls, meta } = this.model;
    if (!calls.length) return null;
    let [ran, moved] = [0, 0];
    const seconds = [];
    const volume = [];
    for (const call of calls) {
      seconds.push([call.time, (ran += call.run)]);
      volume.push([call.time, (moved += (call.bytes_in || 0) + (call.bytes_out || 0))]);
    }
    const budgets = Object.values(meta.interfaces ?? {}).map((about) => about?.budget ?? {});
    const limit = (name) => budgets.map((budget) => budget[name]).find(Number.isFinite);
    return [
      this.#chart(
        "Gate: seconds of compute",
        seconds,
        limit("seconds") ?? limit("gpu_seconds"),
        duration,
      ),
      this.#chart("Gate: bytes", volume, limit("bytes"), bytes),
    ];
  }
}
