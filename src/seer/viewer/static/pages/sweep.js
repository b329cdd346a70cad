// A sweep: one row for each combination, one square for each cell, and the scores and costs.

import { count, dollars, duration, number } from "../text/format.js";
import { fill, h, icon, s } from "../draw/dom.js";
import { Palette, readable, scale } from "../draw/colours.js";
import { fact } from "../panels/gate.js";
import { themeButton } from "../draw/theme.js";
import { ticks } from "../draw/lines.js";

const REFRESH = 2000;
const WIDTH = 260;

/** The page. It reloads its data while it is open, so a running sweep fills up. */
export class SweepPage {
  constructor(source) {
    this.source = source;
    this.palette = new Palette();
    this.head = h("div.facts.top-facts");
    this.title = h("h1", {}, "Sweep");
    this.note = h("div.notes", { "aria-live": "polite" });
    this.body = h("div.sweep-body", {}, h("div.wait", {}, "loading…"));
    this.element = h(
      "div.runs-page.sweep-page",
      {},
      h(
        "header.top",
        {},
        h(
          "a.ghost",
          { href: "#/runs", title: "All runs (Esc)", "aria-label": "All runs" },
          icon("back"),
        ),
        h("div.top-title", {}, this.title),
        this.head,
        themeButton(),
      ),
      this.note,
      this.body,
    );
    this.again = () => this.found && this.#show();
    addEventListener("seer-theme", this.again);
  }

  show(root) {
    fill(root, this.element);
    document.title = "Sweep · Seer";
    this.load();
    this.timer = setInterval(() => !document.hidden && this.load(), REFRESH);
  }

  close() {
    clearInterval(this.timer);
    removeEventListener("seer-theme", this.again);
  }

  async load() {
    try {
      const found = await this.source.sweep();
      fill(this.note, found.note ? h("div.banner.warn", {}, found.note) : null);
      if (JSON.stringify(found) === JSON.stringify(this.found)) return;
      this.found = found;
      this.#show();
    } catch (error) {
      fill(this.note, h("div.banner.bad", {}, error.message));
      if (!this.found) fill(this.body);
    }
  }

  #show() {
    const { name, program, cells, done, running, cost_usd: cost } = this.found;
    fill(this.title, name, h("span.sweep-program", {}, program));
    fill(
      this.head,
      fact("done", `${count(done)} / ${count(cells.length)}`),
      running ? fact("running", count(running)) : null,
      fact("cost", dollars(cost)),
    );
    const groups = this.#groups();
    const bounds = this.#bounds(groups);
    const colours = scale([bounds[0], bounds[1]]);
    fill(
      this.body,
      h(
        "table.sweep",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Agent", "Tools", "Model", "Cells, by repetition"].map((name) => h("th", {}, name)),
            h("th.sweep-axis", {}, "Score, with 95 % interval", axis(bounds)),
            ["Mean", "n", "Cost"].map((name) => h("th.right", {}, name)),
          ),
        ),
        h(
          "tbody",
          {},
          groups.map((group) => this.#row(group, bounds, colours)),
        ),
      ),
    );
  }

  // Combinations in the order of the matrix, with or without intervals.
  #groups() {
    const key = ({ agent, tools, model }) => JSON.stringify([agent, tools, model]);
    const known = new Map(this.found.groups.map((group) => [key(group), group]));
    const found = new Map();
    for (const cell of this.found.cells) {
      if (!found.has(key(cell)))
        found.set(key(cell), { ...cell, mean: null, n: 0, ...known.get(key(cell)), cells: [] });
      found.get(key(cell)).cells.push(cell);
    }
    return [...found.values()];
  }

  #bounds(groups) {
    const values = groups.flatMap(({ low, high, cells }) => [
      ...[low, high].filter(Number.isFinite),
      ...cells.map((cell) => cell.score).filter(Number.isFinite),
    ]);
    return [Math.min(0, ...values), Math.max(1, ...values)];
  }

  #row(group, bounds, colours) {
    const colour = this.palette.of(group.tools ?? "");
    return h(
      "tr",
      {},
      h("td", {}, group.agent ?? "–"),
      h(
        "td",
        {},
        h("span.swatch", { style: { background: colour } }),
        group.tools ?? "–",
      ),
      h("td", {}, group.model ?? "–"),
      h(
        "td.sweep-wide",
        {},
        h(
          "div.sweep-cells",
          {},
          group.cells.map((cell) => square(cell, colours)),
        ),
      ),
      h("td.sweep-wide", {}, interval(group, bounds, colour)),
      h("td.right", { data: { name: "mean" } }, group.mean === null ? "–" : number(group.mean)),
      h("td.right", { data: { name: "n" } }, count(group.n)),
      h("td.right", { data: { name: "cost" } }, dollars(group.cost_usd)),
    );
  }

  key(event) {
    if (event.key !== "Escape") return false;
    location.hash = "#/runs";
    return true;
  }
}

function square(cell, colours) {
  const sign = { done: "?", running: "…", "not run": "" }[cell.outcome] ?? "×";
  const text = cell.score === null ? sign : short(cell.score);
  const rgb = cell.score === null ? null : colours(cell.score);
  const about = [
    `repetition ${cell.repetition}, seed ${cell.seed}: ${cell.outcome}` +
      (cell.score === null ? "" : `, score ${number(cell.score)}`),
    cell.seconds === null ? "" : duration(cell.seconds),
    cell.cost_usd === null ? "" : dollars(cell.cost_usd),
    cell.error,
  ];
  const properties = {
    class: `cell-${cell.outcome.replace(" ", "-")}`,
    title: about.filter(Boolean).join("\n"),
    style: rgb ? { background: `rgb(${rgb})`, color: readable(rgb) } : {},
  };
  const run = cell.runs[cell.runs.length - 1];
  return run
    ? h("a.sweep-cell", { ...properties, href: `#/run/${encodeURIComponent(run)}` }, text)
    : h("span.sweep-cell", properties, text);
}

// A score in at most four characters, so that it fits into a square.
function short(score) {
  for (const digits of [2, 1, 0]) {
    const text = String(Number(score.toFixed(digits))).replace(/^(-?)0\./, "$1.");
    if (text.length <= 4) return text;
  }
  return score.toExponential(0).replace("e+", "e");
}

function place(value, [low, high]) {
  return 8 + ((value - low) / (high - low)) * (WIDTH - 16);
}

// The content security policy forbids style attributes, so the colour is set as a property.
function tinted(tag, attributes, colour) {
  const found = s(tag, attributes);
  found.style.setProperty(tag === "line" ? "stroke" : "fill", colour);
  return found;
}

function axis(bounds) {
  return s(
    "svg",
    { class: "chart sweep-interval", viewBox: `0 0 ${WIDTH} 16`, "aria-hidden": "true" },
    ticks(...bounds, 4).map((value) =>
      s(
        "text",
        { class: "tick", x: place(value, bounds), y: 12, "text-anchor": "middle" },
        number(value),
      ),
    ),
  );
}

function interval({ mean, low, high }, bounds, colour) {
  const known = Number.isFinite(low) && Number.isFinite(high);
  const range = known ? `, from ${number(low)} to ${number(high)}` : "";
  return s(
    "svg",
    {
      class: "chart sweep-interval",
      viewBox: `0 0 ${WIDTH} 26`,
      role: "img",
      "aria-label": mean === null ? "no score yet" : `mean ${number(mean)}${range}`,
    },
    ticks(...bounds, 4).map((value) =>
      s("line", {
        class: "grid",
        x1: place(value, bounds),
        x2: place(value, bounds),
        y1: 0,
        y2: 26,
      }),
    ),
    known
      ? tinted("line", { x1: place(low, bounds), x2: place(high, bounds), y1: 13, y2: 13 }, colour)
      : null,
    mean === null ? null : tinted("circle", { cx: place(mean, bounds), cy: 13, r: 5 }, colour),
  );
}
