// A list of any length. The page holds only the rows near the view.
//
// The height of a row is unknown before the row is shown, so it is estimated, then measured and
// cached by key. When a row above the view is taller than estimated, the view moves by the
// difference, so that the text that the user reads stays in place.

import { h } from "./dom.js";

const MARGIN = 600; // pixels above and below the view in which rows are rendered

/** `render(item)` makes a row; rows with the same `key` and `version` are kept. */
export class VirtualList {
  constructor(scroller, { key, render, estimate = 60, version = () => 0 }) {
    this.scroller = scroller;
    this.key = key;
    this.render = render;
    this.estimate = estimate;
    this.version = version;
    this.items = [];
    this.heights = new Map();
    this.tops = [0];
    this.rows = new Map();
    this.sticky = false;
    this.position = 0;
    this.canvas = h("div.virtual");
    scroller.append(this.canvas);
    this.observer = new ResizeObserver((entries) => this.#measured(entries));
    this.room = new ResizeObserver(() => (this.sticky ? this.toEnd() : this.#later()));
    this.room.observe(scroller);
    scroller.addEventListener("scroll", () => this.#later(), { passive: true });
  }

  setItems(items) {
    // A copy, because a row may only be rendered for an item that has been laid out.
    this.items = items.slice();
    this.#index();
    this.#lay(0);
    this.#show();
    if (this.sticky) this.toEnd();
  }

  /** Renders a row again, or all rows. */
  refresh(key) {
    for (const [known, row] of this.rows) if (key === undefined || known === key) row.version = NaN;
    this.#later();
  }

  toEnd() {
    this.sticky = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.position = this.scroller.scrollTop;
    this.#later();
  }

  /**
   * Decides whether to follow the end. Only a user who scrolls up stops following. A row that grows
   * in the view, such as a loading picture, does not scroll up, and a list that gets more room moves
   * up but stays at its end. With `join`, a user who scrolls to the end starts to follow it.
   */
  followScroll(join) {
    const { scrollTop } = this.scroller;
    if (join && this.atEnd) this.sticky = true;
    else if (scrollTop < this.position && this.#below > 1) this.sticky = false;
    this.position = scrollTop;
  }

  /** Whether the end is in view. */
  get atEnd() {
    return this.#below < 48;
  }

  // The pixels below the view.
  get #below() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight;
  }

  /** Scrolls to a row, so that it is near the top. */
  toIndex(index) {
    this.sticky = false;
    this.scroller.scrollTop =
      this.#offset() + this.tops[Math.max(0, Math.min(index, this.items.length))] - 72;
    this.#show();
    // The rows that were estimated are measured now, so a second scroll is exact.
    requestAnimationFrame(() => {
      this.scroller.scrollTop =
        this.#offset() + this.tops[Math.max(0, Math.min(index, this.items.length))] - 72;
      this.#later();
    });
  }

  /** The index of the first row in view. */
  get first() {
    return this.#find(this.scroller.scrollTop - this.#offset() + 80);
  }

  close() {
    this.observer.disconnect();
    this.room.disconnect();
  }

  #offset() {
    return this.canvas.offsetTop - this.scroller.offsetTop;
  }

  #later() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.#show();
    });
  }

  // Sets the place of each row by its key, and its height, measured or estimated.
  #index() {
    this.places = new Map();
    this.sizes = new Float64Array(this.items.length);
    this.tops = new Float64Array(this.items.length + 1);
    this.items.forEach((item, index) => {
      const key = this.key(item);
      this.places.set(String(key), index);
      this.sizes[index] = this.heights.get(key) ?? this.estimate;
    });
  }

  // Sets the tops of the rows below `first`. A changed row moves only the rows below it.
  #lay(first) {
    for (let index = first; index < this.items.length; index++)
      this.tops[index + 1] = this.tops[index] + this.sizes[index];
    this.canvas.style.height = `${this.tops[this.items.length]}px`;
  }

  #find(position) {
    let [low, high] = [0, this.items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] <= position) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #show() {
    const top = this.scroller.scrollTop - this.#offset();
    const from = this.#find(top - MARGIN);
    const to = Math.min(
      this.items.length,
      this.#find(top + this.scroller.clientHeight + MARGIN) + 1,
    );
    const wanted = new Set();
    for (let index = from; index < to; index++) {
      const item = this.items[index];
      const key = this.key(item);
      wanted.add(key);
      let row = this.rows.get(key);
      if (!row || !Object.is(row.version, this.version(item))) row = this.#make(key, item, row);
      row.element.style.transform = `translateY(${this.tops[index]}px)`;
    }
    for (const [key, row] of this.rows) {
      if (!wanted.has(key) && !row.element.contains(document.activeElement)) this.#drop(key, row);
    }
  }

  #make(key, item, old) {
    const element = h("div.virtual-row", { data: { key: String(key) } }, this.#rendered(item));
    if (old) {
      this.observer.unobserve(old.element);
      old.element.replaceWith(element);
    } else this.canvas.append(element);
    const row = { element, version: this.version(item) };
    this.rows.set(key, row);
    this.observer.observe(element);
    return row;
  }

  // A row that cannot be rendered shows an error. The other rows are not affected.
  #rendered(item) {
    try {
      return this.render(item);
    } catch (error) {
      console.error(error);
      return h("div.banner.bad", {}, `this entry cannot be shown: ${error.message}`);
    }
  }

  #drop(key, row) {
    this.observer.unobserve(row.element);
    row.element.remove();
    this.rows.delete(key);
  }

  #measured(entries) {
    let [first, moved] = [Infinity, 0];
    const view = this.scroller.scrollTop - this.#offset();
    for (const { target } of entries) {
      const place = this.places.get(target.dataset.key);
      if (place === undefined || !target.isConnected) continue;
      const key = this.key(this.items[place]);
      const [height, before] = [target.offsetHeight, this.heights.get(key) ?? this.estimate];
      if (height === before) continue;
      this.heights.set(key, height);
      this.sizes[place] = height;
      first = Math.min(first, place);
      if (this.tops[place + 1] <= view) moved += height - before;
    }
    if (first === Infinity) return;
    this.#lay(first);
    if (this.sticky) this.scroller.scrollTop = this.scroller.scrollHeight;
    else if (moved) this.scroller.scrollTop += moved;
    // Shrinking rows also move the view up, but the user did not scroll.
    this.position = this.scroller.scrollTop;
    this.#show();
  }
}
