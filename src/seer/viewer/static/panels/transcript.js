// The transcript of a run: the task, and the agent's messages, thoughts and tool calls.

import { fill, h, icon } from "../draw/dom.js";
import { VirtualList } from "../draw/virtual.js";
import { dialog } from "../draw/dialogs.js";
import { entry } from "./entry.js";
import { essence } from "../data/essence.js";
import { tree } from "../draw/tree.js";
import { unpack } from "../data/record.js";

const LEVELS = ["compact", "normal", "full"];

/** The list with its search and buttons. `model` is a `RunModel`. */
export class Transcript {
  constructor(model, fetcher) {
    this.model = model;
    this.fetcher = fetcher;
    this.open = new Map();
    this.found = [];
    this.view = {
      fetcher,
      level: "normal",
      turns: model.turns,
      get start() {
        return model.start;
      },
      live: () => model.state === "live" || model.state === "loading",
      isOpen: (item) => this.open.get(item.key) ?? this.#openByDefault(item),
      toggle: (item) => this.#toggle(item),
      raw: (item) => this.#raw(item),
    };
    this.scroller = h("div.transcript-scroll", {
      tabindex: "0",
      "aria-label": "transcript",
      onscroll: () => this.#scrolled(),
      onpointerdown: () => this.#reads(),
      onkeydown: () => this.#reads(),
    });
    this.jump = h(
      "button.jump",
      { hidden: true, onclick: () => this.follow() },
      icon("down"),
      "Latest",
    );
    this.find = h("input.find", {
      type: "search",
      placeholder: "Find in the transcript  ( / )",
      "aria-label": "Find in the transcript",
      spellcheck: "false",
      oninput: () => this.#search(),
      onkeydown: (event) => event.key === "Enter" && this.next(event.shiftKey ? -1 : 1),
    });
    this.hits = h("span.hits");
    this.levels = h(
      "div.segments",
      { role: "group", "aria-label": "Detail" },
      LEVELS.map((level) =>
        h(
          "button",
          {
            onclick: () => this.setLevel(level),
            data: { level },
            "aria-selected": String(level === "normal"),
          },
          level,
        ),
      ),
    );
    this.element = h(
      "section.transcript",
      {},
      h("div.transcript-tools", {}, this.find, this.hits, this.levels),
      this.scroller,
      this.jump,
    );
    this.list = new VirtualList(this.scroller, {
      key: (item) => item.key,
      estimate: 120,
      version: (item) =>
        `${item.version}/${this.view.isOpen(item)}/${this.view.level}/${item.type === "tool_call" && !item.result ? this.model.state : ""}/${this.found.includes(item)}`,
      render: (item) =>
        this.found.includes(item)
          ? h("div.hit", {}, entry(item, this.view))
          : entry(item, this.view),
    });
  }

  #openByDefault(item) {
    if (this.view.level === "compact") return false;
    if (item.type === "tool_call") return true;
    return this.view.level === "full";
  }

  #toggle(item) {
    this.open.set(item.key, !this.view.isOpen(item));
    this.list.refresh(item.key);
  }

  // Shows the recorded lines of an entry, with the fields that the page leaves out.
  #raw(item) {
    const body = h("div.json.raw-lines", {}, "…");
    dialog("In the record", () => body);
    const offsets = [item.at, item.resultAt].filter((at) => at !== undefined);
    Promise.all(offsets.map((at) => this.fetcher.source.line(this.model.id, "events", at))).then(
      (lines) =>
        fill(
          body,
          lines.map((line) => h("div", {}, tree(unpack(line), 2))),
        ),
      (error) => fill(body, error.message),
    );
  }

  setLevel(level) {
    this.view.level = level;
    this.open.clear();
    for (const button of this.levels.children)
      button.setAttribute("aria-selected", String(button.dataset.level === level));
    this.list.heights.clear();
    this.list.setItems(this.model.items);
    this.list.refresh();
  }

  /** Shows new entries. */
  update() {
    this.list.setItems(this.model.items);
    this.#showJump();
  }

  #showJump() {
    this.jump.hidden = this.list.sticky || this.list.atEnd || this.model.state !== "live";
  }

  /** Scrolls to the end and follows it from now on. */
  follow() {
    this.list.toEnd();
    this.jump.hidden = true;
  }

  #scrolled() {
    // The end of a run that was followed stays in view while its claims and pictures load.
    this.list.followScroll(this.model.state === "live");
    this.#showJump();
    this.onscrolled?.(this.model.items[this.list.first]);
  }

  // In a run that has ended, an entry that the user opens grows below the place where they read.
  #reads() {
    if (this.model.state !== "live") this.list.sticky = false;
  }

  /** Scrolls to an item. */
  show(item) {
    const index = this.model.items.indexOf(item);
    if (index >= 0) this.list.toIndex(index);
  }

  /** Goes to the next or previous entry, or to the next or previous hit of a search. */
  next(direction) {
    if (this.found.length) {
      const here = this.list.first;
      const places = this.found.map((item) => this.model.items.indexOf(item));
      const next =
        direction > 0
          ? (places.find((place) => place > here) ?? places[0])
          : (places.findLast((place) => place < here) ?? places[places.length - 1]);
      this.list.toIndex(next);
      return;
    }
    this.list.toIndex(Math.max(0, this.list.first + direction));
  }

  #search() {
    const words = this.find.value.trim().toLowerCase();
    this.found =
      words.length < 2
        ? []
        : this.model.items.filter((item) => essence(item).join("\n").toLowerCase().includes(words));
    this.hits.textContent = words.length < 2 ? "" : `${this.found.length}`;
    this.list.refresh();
    if (this.found.length) this.list.toIndex(this.model.items.indexOf(this.found[0]));
  }

  close() {
    this.list.close();
  }
}
