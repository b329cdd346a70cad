// Two runs side by side, with the place where they first differ.

import { essence, firstDivergence } from "../data/essence.js";
import { fill, h, icon } from "../draw/dom.js";
import { Fetcher } from "../data/fetcher.js";
import { SameCalls } from "../panels/samecalls.js";
import { RunModel, toolSummary } from "../data/model.js";
import { VirtualList } from "../draw/virtual.js";
import { count, dollars, duration, number } from "../text/format.js";
import { build } from "../text/fragment.js";
import { entry } from "../panels/entry.js";
import { fact } from "../panels/gate.js";
import { follow } from "../data/follow.js";
import { statusChip } from "../draw/status.js";
import { themeButton } from "../draw/theme.js";

/** The page. */
export class ComparePage {
  constructor(source, ids) {
    this.source = source;
    this.models = ids.map((id) => new RunModel(id));
    this.views = this.models.map((model) => ({
      fetcher: new Fetcher(source, model.id),
      level: "normal",
      turns: model.turns,
      get start() {
        return model.start;
      },
      live: () => model.state === "live",
      isOpen: (item) => this.open.has(item.key) || item.type === "text",
      toggle: (item) => this.#toggle(item),
    }));
    this.open = new Set();
    this.calls = new SameCalls(
      this.models,
      this.views.map((view) => view.fetcher),
    );
    this.calls.element.hidden = true;
    this.switch = h("button", { onclick: () => this.#switch() }, "Same calls");
    this.version = 0;
    this.head = h("header.top");
    this.titles = h("div.compare-titles");
    this.verdict = h("div.compare-verdict", { "aria-live": "polite" });
    this.scroller = h("div.compare-scroll", { tabindex: "0", "aria-label": "both transcripts" });
    this.element = h("div.compare-page", {}, this.head, this.verdict, this.titles, this.scroller);
    this.element.append(this.calls.element);
    this.list = new VirtualList(this.scroller, {
      key: (row) => row.index,
      estimate: 90,
      version: () => this.version,
      render: (row) => this.#row(row),
    });
  }

  #toggle(item) {
    if (this.open.has(item.key)) this.open.delete(item.key);
    else this.open.add(item.key);
    this.version++;
    this.update();
  }

  // Switches between the transcripts and the calls that both runs made.
  #switch() {
    const calls = this.calls.element.hidden;
    this.calls.element.hidden = !calls;
    this.scroller.hidden = calls;
    this.switch.textContent = calls ? "Transcripts" : "Same calls";
    this.calls.update();
  }

  show(root) {
    fill(root, this.element);
    document.title = "Compare · Seer";
    fill(
      this.head,
      h("a.ghost", { href: "#/", "aria-label": "All runs" }, icon("back")),
      h("div.top-title", {}, h("h1", {}, "Side by side")),
      h(
        "div.top-actions",
        {},
        h("button", { onclick: () => this.#toDivergence() }, "First divergence"),
        this.switch,
        themeButton(),
      ),
    );
    this.following = this.models.map((model) =>
      follow(this.source, model, () => (this.version++, this.update())),
    );
  }

  close() {
    for (const one of this.following ?? []) one.stop();
    this.list.close();
  }

  update() {
    const [left, right] = this.models;
    this.at = firstDivergence(left.items, right.items);
    const length = Math.max(left.items.length, right.items.length);
    fill(
      this.titles,
      this.models.map((model) =>
        h(
          "div",
          {},
          h("a.run-name", { href: `#/run/${encodeURIComponent(model.id)}` }, model.title),
          h("span.compare-id", {}, model.id.slice(-8)),
          h(
            "div.facts",
            {},
            statusChip(model.meta.status),
            fact("turns", count(model.meta.turns)),
            fact("time", duration(model.end - model.start)),
            Number.isFinite(model.meta.cost_usd)
              ? fact("cost", dollars(model.meta.cost_usd))
              : null,
            Number.isFinite(model.meta.score) ? fact("score", number(model.meta.score)) : null,
            model.goneBecause ? h("span.bad", {}, model.goneBecause) : null,
          ),
        ),
      ),
    );
    fill(
      this.verdict,
      this.at < 0
        ? "The two runs are the same."
        : `The first ${this.at} of ${length} entries are the same; the runs diverge at entry ${this.at + 1}.`,
    );
    if (!this.calls.element.hidden) this.calls.update();
    this.list.setItems(
      Array.from({ length }, (_, index) => ({
        index,
        items: this.models.map((model) => model.items[index]),
      })),
    );
  }

  #row({ index, items }) {
    const parted = index === this.at;
    const sides = items.map((item, side) =>
      h("div.compare-side", { class: item ? "" : "nothing" }, item ? this.#entry(item, side) : "–"),
    );
    return h(
      "div",
      {},
      parted ? h("div.divergence", { role: "separator" }, "first divergence") : null,
      h("div.compare-row", { class: this.at >= 0 && index >= this.at ? "parted" : "same" }, sides),
      parted && items[0] && items[1] ? this.#changed(items) : null,
    );
  }

  #entry(item, side) {
    return item.type === "tool_call" && !this.open.has(item.key)
      ? h(
          "button.tool-head.folded",
          { onclick: () => this.#toggle(item) },
          h("span.tool-name", {}, String(item.event.name)),
          h("span.summary", {}, toolSummary(item)),
        )
      : entry(item, this.views[side]);
  }

  // Marks the words that differ in the first two entries that differ.
  #changed(items) {
    const texts = items.map((item) => essence(item).slice(1).join("\n").slice(0, 6000));
    const sides = texts.map((text) => h("pre.output.compare-words", {}, text));
    this.source
      .difference(...texts)
      .then((found) => sides.forEach((side, at) => fill(side, build(found[at]))))
      .catch((error) => fill(this.verdict, error.message));
    return h(
      "details.fold.compare-diff",
      { open: true },
      h("summary", {}, "what differs"),
      h("div.compare-row", {}, sides),
    );
  }

  #toDivergence() {
    if (this.at >= 0) this.list.toIndex(this.at);
  }

  key(event) {
    if (event.key === "Escape") location.hash = "#/";
    else if (event.key === "n") this.#toDivergence();
    else if (event.key === "j") this.list.toIndex(this.list.first + 1);
    else if (event.key === "k") this.list.toIndex(Math.max(0, this.list.first - 1));
    else return false;
    return true;
  }
}
