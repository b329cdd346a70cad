// Facts about a run that are not part of its transcript.

import { duration, moment } from "../text/format.js";
import { fill, h } from "../draw/dom.js";
import { textOf } from "../data/record.js";
import { toast } from "../draw/dialogs.js";
import { tree } from "../draw/tree.js";

/** The panel. */
export class AboutPanel {
  constructor(model, { source }) {
    this.model = model;
    this.source = source;
    this.artifacts = [];
    this.element = h("div.panel.about");
    this.verdict = h("span.verdict");
    if (!source.shared)
      source.run(model.id).then(
        (found) => ((this.artifacts = found.artifacts), this.update()),
        () => this.update(),
      );
  }

  update() {
    const { meta } = this.model;
    const rows = [
      ["Run", this.model.id],
      ["Status", meta.status],
      ["Message", meta.message],
      ["Agent", meta.provider],
      ["Asked for", meta.asked_provider === meta.provider ? null : meta.asked_provider],
      ["Model", meta.model],
      ["Session", meta.session],
      ["Started", moment(meta.created)],
      ["Took", duration((meta.ended ?? this.model.end) - (meta.created ?? this.model.start))],
      ["Score", meta.score],
    ];
    fill(
      this.element,
      this.model.problems.map((problem) => h("div.banner.bad", {}, problem)),
      h(
        "dl.rows",
        {},
        rows
          .filter(([, value]) => textOf(value))
          .map(([name, value]) => [h("dt", {}, name), h("dd", {}, textOf(value))]),
      ),
      this.source.shared
        ? null
        : h(
            "div.line",
            {},
            h("button.small", { onclick: () => this.#verify() }, "Verify the record"),
            this.verdict,
          ),
      this.artifacts.length
        ? section(
            "Files",
            this.artifacts.map((name) =>
              h("div", {}, h("button.link", { onclick: () => this.#download(name) }, name)),
            ),
          )
        : null,
      meta.interfaces ? section("Interfaces", tree(meta.interfaces, 1)) : null,
      meta.limits ? section("Limits", tree(meta.limits, 1)) : null,
      meta.program ? section("Program", tree(meta.program, 2)) : null,
      meta.versions ? section("Packages", tree(meta.versions, 0)) : null,
      meta.platform ? section("Machine", tree(meta.platform, 2)) : null,
    );
  }

  async #verify() {
    this.verdict.textContent = "checking…";
    const found = await this.source
      .verify(this.model.id)
      .catch((error) => ({ ok: false, message: error.message }));
    this.verdict.className = `verdict ${found.ok ? "good" : "bad"}`;
    this.verdict.textContent = found.message;
  }

  async #download(name) {
    try {
      const data = await this.source.artifact(this.model.id, name);
      save(new Blob([data], { type: "application/octet-stream" }), name.split("/").pop());
    } catch (error) {
      toast(error.message, "bad");
    }
  }
}

function section(title, ...children) {
  return h("section.about-section", {}, h("h3", {}, title), h("div.json", {}, children));
}

/** Lets the browser save a file. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
