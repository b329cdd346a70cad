// All values of a run that can be drawn: arrays, coloured tokens, steering.

import { BlobRef } from "../data/record.js";
import { VirtualList } from "../draw/virtual.js";
import { callPictures } from "./entry.js";
import { decode } from "../data/arrays.js";
import { findViews } from "../draw/views.js";
import { h } from "../draw/dom.js";
import { since } from "../text/format.js";

/** The panel. `show(item)` scrolls to the tool call that a picture came from. */
export class Gallery {
  constructor(model, { fetcher, show }) {
    this.model = model;
    this.view = { fetcher };
    this.show = show;
    this.known = 0;
    this.drawn = [];
    this.scroller = h("div.gallery-scroll", { tabindex: "0", "aria-label": "arrays and tokens" });
    this.empty = h(
      "div.empty",
      {},
      "Arrays, tokens with values, and texts before and after steering appear here when a call returns them.",
    );
    this.element = h("div.panel.gallery", {}, this.empty, this.scroller);
    this.list = new VirtualList(this.scroller, {
      key: (call) => call.key,
      estimate: 260,
      render: (call) => this.#card(call),
    });
  }

  update() {
    for (; this.known < this.model.calls.length; this.known++) {
      const call = this.model.calls[this.known];
      if (call.ok && call.result instanceof BlobRef) this.drawn.push(call); // it is decoded later
      const found = call.ok ? decode(call.result, call.result_buffers) : null;
      if (found && "result" in found && findViews(found.result).length) this.drawn.push(call);
    }
    this.empty.hidden = this.drawn.length > 0;
    this.list.setItems(this.drawn);
  }

  #card(call) {
    return h(
      "div.gallery-card",
      {},
      h(
        "button.link",
        { onclick: () => call.item && this.show(call.item) },
        `${since(call.started - this.model.start)}  ${call.function}`,
      ),
      callPictures(call, this.view),
    );
  }

  close() {
    this.list.close();
  }
}
