// The whole run as one strip: the agent's actions, the gate calls below, and the reader's position.

import { colour } from "../draw/theme.js";
import { h, own } from "../draw/dom.js";
import { since } from "../text/format.js";

const HEIGHT = 46;

/** The strip. A click calls `show(item)` with the nearest entry. */
export class Overview {
  constructor(model, { palette, show }) {
    this.model = model;
    this.palette = palette;
    this.here = null;
    this.canvas = h("canvas", { role: "img", "aria-label": "the run over time" });
    this.tip = h("div.tip", { hidden: true });
    this.element = h("div.overview", {}, this.canvas, this.tip);
    this.canvas.onclick = (event) => {
      const item = this.#nearest(this.#time(event));
      if (item) show(item);
    };
    this.canvas.onpointermove = (event) => this.#hover(event);
    this.canvas.onpointerleave = () => (this.tip.hidden = true);
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.element);
    this.again = () => this.draw();
    addEventListener("seer-theme", this.again);
  }

  #time(event) {
    const box = this.canvas.getBoundingClientRect();
    return (
      this.model.start +
      ((event.clientX - box.left) / box.width) * (this.model.end - this.model.start)
    );
  }

  #nearest(time) {
    return this.model.items.findLast((item) => item.time <= time) ?? this.model.items[0];
  }

  #hover(event) {
    const time = this.#time(event);
    const item = this.#nearest(time);
    this.tip.hidden = !item;
    if (!item) return;
    this.tip.textContent = `${since(time - this.model.start)}  ${item.type === "tool_call" ? String(item.event.name) : item.type.replace("_", " ")}`;
    this.tip.style.left = `${Math.min(event.offsetX + 10, this.element.clientWidth - 150)}px`;
  }

  /** Marks the reader's position. */
  mark(item) {
    this.here = item ?? null;
    if (this.strip) this.#show();
    else this.draw();
  }

  /** Draws the strip again. The reader's position is drawn over it, so that scrolling is cheap. */
  draw() {
    const width = this.element.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    this.strip = new OffscreenCanvas(width * ratio, HEIGHT * ratio);
    const pen = this.strip.getContext("2d");
    pen.scale(ratio, ratio);
    const { start, end, items, calls } = this.model;
    const X = (time) => ((time - start) / (end - start || 1)) * (width - 2) + 1;
    const colours = {
      text: colour("--accent"),
      thinking: colour("--think"),
      tool_call: colour("--tool"),
      error: colour("--bad"),
      limit_reached: colour("--warn"),
      message_not_delivered: colour("--warn"),
      user_message: colour("--good"),
    };
    pen.fillStyle = colour("--track");
    pen.beginPath();
    pen.roundRect(0, 4, width, 20, 4);
    pen.roundRect(0, 29, width, 13, 3);
    pen.fill();
    items.forEach((item) => {
      const wide =
        item.type === "tool_call" ? Math.max(2, X(item.endTime ?? end) - X(item.time)) : 3;
      if (!own(colours, item.type)) return;
      pen.fillStyle = item.result?.is_error ? colours.error : colours[item.type];
      pen.beginPath();
      pen.roundRect(
        X(item.time),
        item.type === "tool_call" ? 7 : 4,
        Math.max(2, wide - 1),
        item.type === "tool_call" ? 14 : 20,
        2,
      );
      pen.fill();
    });
    for (const call of calls) {
      pen.fillStyle = call.ok ? this.palette.now(String(call.function)) : colours.error;
      pen.fillRect(X(call.started), 31, Math.max(1.5, X(call.time) - X(call.started)), 9);
    }
    this.#show();
  }

  #show() {
    const { width, height } = this.strip;
    [this.canvas.width, this.canvas.height] = [width, height];
    const pen = this.canvas.getContext("2d");
    pen.drawImage(this.strip, 0, 0);
    if (!this.here) return;
    const ratio = height / HEIGHT;
    const { start, end } = this.model;
    const place = ((this.here.time - start) / (end - start || 1)) * (width - 2) + 1;
    pen.fillStyle = colour("--text");
    pen.fillRect(Math.min(width - 2 * ratio, place), 0, 2 * ratio, height);
  }

  close() {
    this.watch.disconnect();
    removeEventListener("seer-theme", this.again);
  }
}
