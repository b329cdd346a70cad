// One run: its transcript, the panels beside it, and the strip above both.

import { count, dollars, duration, number } from "../text/format.js";
import { approval, changeLimit, messageBox, pendingMessages, stopButton } from "../panels/control.js";
import { fill, h, icon } from "../draw/dom.js";
import { AboutPanel } from "../panels/about.js";
import { BudgetPanel } from "../panels/budget.js";
import { Fetcher } from "../data/fetcher.js";
import { Gallery } from "../panels/values.js";
import { NotebookPanel } from "../panels/notebook.js";
import { Overview } from "../panels/overview.js";
import { Palette } from "../draw/colours.js";
import { RunModel } from "../data/model.js";
import { Transcript } from "../panels/transcript.js";
import { Waterfall } from "../panels/gate.js";
import { fact } from "../panels/gate.js";
import { shareRun } from "../panels/share.js";
import { statusChip } from "../draw/status.js";
import { textOf } from "../data/record.js";
import { themeButton } from "../draw/theme.js";
import { follow } from "../data/follow.js";

/** The page of a run. `show(root)` shows it, and `close()` ends it. */
export class RunPage {
  constructor(source, id, about) {
    this.source = source;
    this.model = new RunModel(id);
    const fetcher = new Fetcher(source, id);
    const palette = new Palette();
    const show = (item) => (this.tab("transcript"), this.transcript.show(item));
    const parts = { fetcher, palette, show, source };
    this.control = about.allow_control;
    this.transcript = new Transcript(this.model, fetcher);
    this.transcript.view.approve = this.control ? approval(this.model, source) : null;
    this.overview = new Overview(this.model, parts);
    this.panels = {
      gate: ["Gate", new Waterfall(this.model, parts)],
      values: ["Values", new Gallery(this.model, parts)],
      notebook: ["Notebook", new NotebookPanel(this.model, parts)],
      budget: [
        "Budget",
        new BudgetPanel(this.model, {
          raise: this.control ? changeLimit(this.model, source) : null,
        }),
      ],
      about: ["About", new AboutPanel(this.model, parts)],
    };
    this.transcript.onscrolled = (item) => this.overview.mark(item);
    this.head = h("header.top");
    this.notes = h("div.notes", { "aria-live": "polite" });
    this.tabs = h(
      "nav.tabs",
      { role: "tablist" },
      [
        ["transcript", "Transcript"],
        ...Object.entries(this.panels).map(([name, [label]]) => [name, label]),
      ].map(([name, label]) =>
        h("button", { role: "tab", data: { name }, onclick: () => this.tab(name) }, label),
      ),
    );
    this.panel = h("aside.side");
    this.pending = h("div.pending-messages", { "aria-live": "polite" });
    this.footer = h("footer.bottom");
    this.element = h(
      "div.run-page",
      { data: { tab: "transcript" } },
      this.head,
      this.notes,
      this.overview.element,
      h("div.split", {}, this.transcript.element, h("div.beside", {}, this.tabs, this.panel)),
      this.pending,
      this.footer,
    );
    this.shown = "gate";
  }

  show(root) {
    fill(root, this.element);
    this.tab("gate", false);
    this.update();
    this.following = follow(this.source, this.model, () => this.update());
  }

  close() {
    this.following?.stop();
    for (const part of [
      this.transcript,
      this.overview,
      ...Object.values(this.panels).map(([, panel]) => panel),
    ])
      part.close?.();
  }

  /** Shows a panel. On a phone, the transcript is a panel too. */
  tab(name, chosen = true) {
    if (chosen) this.element.dataset.tab = name === "transcript" ? "transcript" : "panel";
    if (name !== "transcript") {
      this.shown = name;
      fill(this.panel, this.panels[name][1].element);
      this.panels[name][1].update();
    }
    const narrow = this.element.dataset.tab === "transcript" ? "transcript" : this.shown;
    for (const button of this.tabs.children) {
      button.setAttribute("aria-selected", String(button.dataset.name === this.shown));
      button.classList.toggle("narrow-selected", button.dataset.name === narrow);
    }
  }

  update() {
    const { model } = this;
    document.title = `${model.meta.status === "running" ? "● " : ""}${model.title} · Seer`;
    this.#head();
    fill(
      this.notes,
      model.state === "gone" ? h("div.banner.bad", {}, model.goneBecause) : null,
      model.lost ? h("div.banner.warn", {}, model.lost) : null,
      model.problems.slice(0, 3).map((problem) => h("div.banner.bad", {}, problem)),
    );
    this.transcript.update();
    if (model.state === "live" && !this.joined) this.transcript.follow();
    this.joined ||= model.state !== "loading";
    this.panels[this.shown][1].update();
    this.overview.draw();
    fill(this.pending, pendingMessages(model));
    const wanted = this.control && model.state === "live";
    if (wanted !== Boolean(this.footer.firstChild))
      fill(this.footer, wanted ? messageBox(model, this.source) : null);
  }

  #head() {
    const { model } = this;
    const { meta } = model;
    const last = model.usage[model.usage.length - 1];
    const cost = last?.cost ?? meta.cost_usd;
    const tokens = last?.tokens ?? meta.tokens;
    const live = model.state === "live";
    fill(
      this.head,
      this.source.shared
        ? h("span.brand", {}, "Seer")
        : h(
            "a.ghost",
            { href: "#/", title: "All runs (Esc)", "aria-label": "All runs" },
            icon("back"),
          ),
      h(
        "div.top-title",
        {},
        h("h1", { title: model.id }, model.title),
        h(
          "div.top-sub",
          {},
          statusChip(meta.status),
          [textOf(meta.provider), textOf(meta.model)]
            .filter(Boolean)
            .map((text) => h("span", {}, text)),
        ),
      ),
      h(
        "div.facts.top-facts",
        {},
        fact(
          "time",
          duration(
            (live ? Date.now() / 1000 : (meta.ended ?? model.end)) - (meta.created ?? model.start),
          ),
        ),
        fact("turns", count(model.items.reduce((most, item) => Math.max(most, item.turn), 0))),
        fact("gate calls", count(model.calls.length)),
        tokens ? fact("tokens", count(tokens)) : null,
        Number.isFinite(cost) ? fact("cost", dollars(cost)) : null,
        Number.isFinite(meta.score) ? fact("score", number(meta.score)) : null,
      ),
      h(
        "div.top-actions",
        {},
        this.control && live ? stopButton(model, this.source) : null,
        this.source.shared
          ? null
          : h(
              "button.ghost",
              {
                title: "Share (s)",
                "aria-label": "Share",
                onclick: () => shareRun(model, this.source),
              },
              icon("share"),
            ),
        themeButton(),
      ),
    );
  }

  /** Handles a key; returns whether this page uses it. */
  key(event) {
    const { transcript } = this;
    const names = Object.keys(this.panels);
    if (event.key === "j" || event.key === "n") transcript.next(1);
    else if (event.key === "k" || event.key === "N") transcript.next(-1);
    else if (event.key === "g") transcript.list.toIndex(0);
    else if (event.key === "G") transcript.follow();
    else if (event.key === "/") (this.tab("transcript"), transcript.find.focus());
    else if (event.key === "e")
      transcript.setLevel(
        { compact: "normal", normal: "full", full: "compact" }[transcript.view.level],
      );
    else if (event.key === "s" && !this.source.shared) shareRun(this.model, this.source);
    else if (/^[1-5]$/.test(event.key)) this.tab(names[Number(event.key) - 1]);
    else if (event.key === "Escape" && !this.source.shared) location.hash = "#/";
    else return false;
    return true;
  }
}
