// The notebook of a run, cell by cell, from the record or from the live session.

import { fill, h } from "../draw/dom.js";
import { build, codeBlock, markdown } from "../text/fragment.js";
import { findViews } from "../draw/views.js";
import { image } from "./entry.js";
import { picture } from "../draw/pictures.js";
import { terminal } from "../text/ansi.js";
import { tree } from "../draw/tree.js";

const MOST_OUTPUTS = 100;
const LONGEST = 50000;

/** The panel. It fetches the notebook again after each tool call. */
export class NotebookPanel {
  constructor(model, { fetcher, source }) {
    this.model = model;
    this.source = source;
    this.view = { fetcher };
    this.seen = -1;
    this.text = "";
    this.element = h("div.panel.notebook", {}, h("div.empty", {}, "This run has no notebook."));
  }

  async update() {
    const answers =
      this.model.items.filter((item) => item.type === "tool_call" && item.result).length +
      (this.model.state === "over" ? 1 : 0);
    if (answers === this.seen) return;
    this.seen = answers;
    try {
      const found = await this.source.notebook(this.model.id);
      const text = JSON.stringify(found);
      if (!found || text === this.text) return;
      this.text = text;
      fill(
        this.element,
        (Array.isArray(found.cells) ? found.cells : [])
          .slice(0, 2000)
          .map((cell, index) => this.#cell(cell ?? {}, found.fragments?.[index] ?? {})),
      );
    } catch (error) {
      fill(this.element, h("div.empty", {}, `The notebook cannot be shown: ${error.message}`));
    }
  }

  #cell(cell, fragments) {
    const source = fragments.source ? build(fragments.source) : joined(cell.source);
    if (cell.cell_type === "markdown") return h("div.cell.cell-markdown", {}, markdown(source));
    const outputs = Array.isArray(cell.outputs) ? cell.outputs.slice(0, MOST_OUTPUTS) : [];
    return h(
      "div.cell",
      {},
      h(
        "div.cell-mark",
        {},
        `[${Number.isFinite(cell.execution_count) ? cell.execution_count : " "}]`,
      ),
      h(
        "div.cell-main",
        {},
        cell.cell_type === "raw" ? h("pre.output", {}, source) : codeBlock(source),
        outputs.map((output, index) => this.#output(output ?? {}, fragments[index])),
      ),
    );
  }

  #output(output, fragment) {
    if (output.output_type === "stream")
      return h(
        `pre.output${output.name === "stderr" ? ".stderr" : ""}`,
        { tabindex: "0" },
        terminal(joined(output.text).slice(0, LONGEST)),
      );
    if (output.output_type === "error")
      return h(
        "pre.output.failed",
        { tabindex: "0" },
        terminal(
          (joined(output.traceback, "\n") || `${output.ename}: ${output.evalue}`).slice(0, LONGEST),
        ),
      );
    const data = output.data && typeof output.data === "object" ? output.data : {};
    for (const type of ["image/png", "image/jpeg", "image/gif", "image/webp"])
      if (data[type])
        return image({ data: joined(data[type]).replace(/\s/g, ""), mime_type: type }, this.view);
    if (data["image/svg+xml"])
      return image(
        { data: btoa(unescapeUtf8(joined(data["image/svg+xml"]))), mime_type: "image/svg+xml" },
        this.view,
      );
    if (fragment) return h("div.output-html.markdown", {}, build(fragment));
    if (data["application/json"] !== undefined)
      return h(
        "div.json",
        {},
        tree(data["application/json"], 2),
        findViews(data["application/json"]).map((one) => picture(one, this.view)),
      );
    return h(
      "pre.output",
      { tabindex: "0" },
      terminal(joined(data["text/plain"]).slice(0, LONGEST)),
    );
  }
}

// Texts in notebooks are strings or lists of lines.
function joined(value, between = "") {
  if (Array.isArray(value)) return value.map(String).join(between);
  return value === null || value === undefined ? "" : String(value);
}

// A string with one character per byte, which `btoa` needs.
function unescapeUtf8(text) {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}
