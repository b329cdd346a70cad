// The list of all runs, with filters, sorting, search and pages.

import { ago, count, dollars, duration, moment, number } from "../text/format.js";
import { fill, h, icon } from "../draw/dom.js";
import { statusChip } from "../draw/status.js";
import { themeButton } from "../draw/theme.js";

const PAGE = 50;
const REFRESH = 3000;
const COLUMNS = [
  ["status", "Status"],
  ["name", "Run"],
  ["provider", "Agent"],
  ["model", "Model"],
  ["created", "Started"],
  ["seconds", "Time"],
  ["turns", "Turns"],
  ["calls", "Gate calls"],
  ["tokens", "Tokens"],
  ["cost_usd", "Cost"],
  ["score", "Score"],
];

/** The page. Its filters are in the address, so that they can be bookmarked. */
export class RunsPage {
  constructor(source, query, about) {
    this.source = source;
    this.sweep = about.sweep;
    this.query = {
      search: query.get("search") ?? "",
      status: query.get("status") ?? "",
      provider: query.get("provider") ?? "",
      model: query.get("model") ?? "",
      order: query.get("order") ?? "created",
      descending: query.get("descending") ?? "1",
      offset: Number(query.get("offset")) || 0,
    };
    this.chosen = new Set();
    this.selected = 0;
    this.search = h("input.search", {
      type: "search",
      placeholder: "Search runs  ( / )",
      "aria-label": "Search runs",
      value: this.query.search,
      spellcheck: "false",
      oninput: () => this.#later(),
    });
    this.filters = h("div.filters");
    this.table = h("tbody");
    this.heads = h("tr");
    this.pager = h("div.pager");
    this.note = h("div.notes", { "aria-live": "polite" });
    this.compare = h(
      "button.primary.compare",
      {
        hidden: true,
        onclick: () =>
          (location.hash = `#/compare/${[...this.chosen].map(encodeURIComponent).join("/")}`),
      },
      icon("compare"),
      "Compare",
    );
    this.element = h(
      "div.runs-page",
      {},
      h(
        "header.top",
        {},
        h("div.brand", {}, h("img.logo", { alt: "" }), "Seer"),
        about.sweep
          ? h("a.folder", { href: "#/sweep" }, `sweep ${about.folder}`)
          : h("span.folder", {}, about.folder),
        h("div.search-box", {}, icon("search"), this.search),
        this.compare,
        themeButton(),
      ),
      this.note,
      this.filters,
      h("div.table-box", {}, h("table.runs", {}, h("thead", {}, this.heads), this.table)),
      this.pager,
    );
    this.element.querySelector(".logo")?.setAttribute("src", "icon.svg");
  }

  show(root) {
    fill(root, this.element);
    document.title = "Runs · Seer";
    this.load();
    this.timer = setInterval(() => !document.hidden && this.load(), REFRESH);
  }

  close() {
    clearInterval(this.timer);
    clearTimeout(this.typing);
  }

  #later() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.#change({ search: this.search.value, offset: 0 }), 150);
  }

  #change(values) {
    Object.assign(this.query, values);
    this.selected = 0;
    const said = Object.entries(this.query).filter(
      ([name, value]) =>
        value !== "" &&
        !(name === "order" && value === "created") &&
        !(name === "descending" && value === "1") &&
        !(name === "offset" && !value),
    );
    history.replaceState(null, "", `#/${this.sweep ? "runs" : ""}${said.length ? `?${new URLSearchParams(said)}` : ""}`);
    this.load();
  }

  async load() {
    const asked = JSON.stringify(this.query);
    try {
      const found = await this.source.runs({ ...this.query, limit: PAGE });
      if (asked !== JSON.stringify(this.query)) return; // the user has changed the query
      const text = JSON.stringify(found) + asked + [...this.chosen];
      fill(this.note);
      if (text === this.text) return;
      this.text = text;
      this.found = found;
      this.#show();
    } catch (error) {
      fill(this.note, h("div.banner.bad", {}, error.message));
    }
  }

  #show() {
    const { runs, total, choices } = this.found;
    if (document.activeElement?.tagName !== "SELECT")
      fill(
        this.filters,
        ["status", "provider", "model"].map((name) => this.#filter(name, choices[name])),
        h("span.total", {}, `${total.toLocaleString("en")} run${total === 1 ? "" : "s"}`),
      );
    fill(
      this.heads,
      h("th.pick"),
      COLUMNS.map(([name, label]) => this.#heading(name, label)),
    );
    this.selected = Math.min(this.selected, Math.max(0, runs.length - 1));
    fill(
      this.table,
      runs.length
        ? runs.map((run, index) => this.#row(run, index))
        : h(
            "tr",
            {},
            h(
              "td.empty",
              { colspan: String(COLUMNS.length + 1) },
              this.query.search || this.query.status
                ? "No runs match."
                : "No runs yet. They appear here as soon as run_agent starts one.",
            ),
          ),
    );
    const pages = Math.max(1, Math.ceil(total / PAGE));
    const page = Math.floor(this.query.offset / PAGE) + 1;
    const turn = (by) => this.#change({ offset: Math.max(0, this.query.offset + by * PAGE) });
    fill(
      this.pager,
      pages > 1
        ? [
            h(
              "button",
              { disabled: page <= 1, onclick: () => turn(-1), "aria-label": "Previous page" },
              "‹",
            ),
            h("span", {}, `${page} / ${pages}`),
            h(
              "button",
              { disabled: page >= pages, onclick: () => turn(1), "aria-label": "Next page" },
              "›",
            ),
          ]
        : null,
    );
    this.compare.hidden = this.chosen.size !== 2;
  }

  #filter(name, values) {
    if (!values || values.length < 2) return null;
    const label = { status: "any status", provider: "any agent", model: "any model" }[name];
    const select = h(
      "select",
      { "aria-label": name, onchange: () => this.#change({ [name]: select.value, offset: 0 }) },
      h("option", { value: "" }, label),
      values.map((value) => h("option", { value, selected: value === this.query[name] }, value)),
    );
    return select;
  }

  #heading(name, label) {
    const active = this.query.order === name;
    const down = this.query.descending === "1";
    return h(
      "th",
      { class: `col-${name}` },
      h(
        "button",
        {
          "aria-label": `Sort by ${label}`,
          class: active ? "active" : "",
          onclick: () => this.#sort(name),
        },
        label,
        active ? (down ? " ↓" : " ↑") : "",
      ),
    );
  }

  /** Sorts by a column, or reverses its order. It reads the query: the shown list may be older. */
  #sort(name) {
    const { order, descending } = this.query;
    const turned = order === name && descending === "1";
    this.#change({ order: name, descending: turned ? "0" : "1", offset: 0 });
  }

  #row(run, index) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose ${run.name || run.run_id} to compare`,
      onchange: () => this.#choose(run.run_id, box.checked),
    });
    box.checked = this.chosen.has(run.run_id);
    const open = (event) =>
      !event.target.closest("input, a") &&
      (location.hash = `#/run/${encodeURIComponent(run.run_id)}`);
    const seconds =
      run.ended === null
        ? run.status === "running"
          ? Date.now() / 1000 - run.created
          : null
        : run.ended - run.created;
    return h(
      "tr",
      { class: index === this.selected ? "selected" : "", onclick: open },
      h("td.pick", {}, box),
      h("td.col-status", {}, statusChip(run.status)),
      h(
        "td.col-name",
        {},
        h(
          "a.run-name",
          { href: `#/run/${encodeURIComponent(run.run_id)}` },
          run.name || run.run_id,
        ),
        h("div.run-line", {}, run.line),
      ),
      h("td.col-provider", {}, run.provider ?? "–"),
      h("td.col-model", {}, run.model ?? "–"),
      h("td.col-created", { title: moment(run.created) }, ago(run.created)),
      h("td.col-seconds", {}, duration(seconds)),
      h("td.col-turns", {}, count(run.turns)),
      h("td.col-calls", {}, count(run.calls)),
      h("td.col-tokens", {}, run.tokens ? count(run.tokens) : "–"),
      h("td.col-cost_usd", {}, dollars(run.cost_usd)),
      run.score === null ? h("td.col-score.nothing", {}, "–") : h("td.col-score", {}, number(run.score)),
    );
  }

  #choose(id, on) {
    if (on) this.chosen.add(id);
    else this.chosen.delete(id);
    if (this.chosen.size > 2) this.chosen.delete([...this.chosen][0]);
    this.#show();
  }

  key(event) {
    const { runs } = this.found ?? { runs: [] };
    if (event.key === "/") this.search.focus();
    else if (event.key === "j" || event.key === "ArrowDown")
      this.#select(Math.min(runs.length - 1, this.selected + 1));
    else if (event.key === "k" || event.key === "ArrowUp")
      this.#select(Math.max(0, this.selected - 1));
    else if (event.key === "Enter" && runs[this.selected])
      location.hash = `#/run/${encodeURIComponent(runs[this.selected].run_id)}`;
    else if (event.key === "x" && runs[this.selected])
      this.#choose(runs[this.selected].run_id, !this.chosen.has(runs[this.selected].run_id));
    else return false;
    return true;
  }

  #select(index) {
    this.selected = index;
    this.#show();
    this.table.children[index]?.scrollIntoView({ block: "nearest" });
  }
}
