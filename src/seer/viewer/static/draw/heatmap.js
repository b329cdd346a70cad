// Draws a matrix as a heat map: one cell per number, or per group of numbers in a large matrix.

import { fill, h } from "./dom.js";
import { number } from "../text/format.js";
import { scale } from "./colours.js";
import { ticks } from "./lines.js";

const MOST = 512; // cells along one side

/** A heat map of `rows` × `columns` numbers; each side may have `names` and a `title`. */
export function heatmap(data, rows, columns, { side = {}, below = {} } = {}) {
  const [stepY, stepX] = [Math.ceil(rows / MOST), Math.ceil(columns / MOST)];
  const [height, width] = [Math.ceil(rows / stepY), Math.ceil(columns / stepX)];
  const cells =
    stepX * stepY === 1 ? data : reduce(data, rows, columns, stepY, stepX, height, width);
  const canvas = h("canvas.heat", { role: "img", "aria-label": `heat map, ${rows} by ${columns}` });
  [canvas.width, canvas.height] = [width, height];
  const tip = h("div.tip", { hidden: true });
  const key = h("div");
  const draw = (whole) => {
    const colours = scale(cells, { whole });
    paint(canvas, cells, width, height, colours);
    const change = colours.clipped || whole ? () => draw(!whole) : null;
    fill(key, legend(colours, change));
  };
  draw(false);
  // A cell is at least three pixels high, and a small matrix does not become one huge block.
  const cell = Math.min(26, Math.max(3, Math.floor(260 / height)));
  canvas.style.height = `${Math.min(420, height * cell)}px`;
  const name = ({ names, title }, index) =>
    names ? visible(names[index]) : `${title || "index"} ${index}`;
  canvas.onpointermove = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(width - 1, Math.floor(((event.clientX - box.left) / box.width) * width));
    const y = Math.min(height - 1, Math.floor(((event.clientY - box.top) / box.height) * height));
    const [row, column] = [Math.max(0, y) * stepY, Math.max(0, x) * stepX];
    tip.hidden = false;
    tip.textContent = `${name(side, row)} · ${name(below, column)}: ${number(cells[y * width + x])}`;
    tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - 120)}px`;
    tip.style.top = `${event.clientY - box.top + 14}px`;
  };
  canvas.onpointerleave = () => (tip.hidden = true);
  return h(
    "div.heatmap",
    {},
    h("span.heat-title.heat-side-title", {}, side.title ?? ""),
    h("div.heat-rows", {}, labels(side, rows, Math.floor(parseInt(canvas.style.height, 10) / 13))),
    h("div.heat-cells", {}, canvas, tip),
    h("div.heat-columns", {}, labels(below, columns, 48, 560)),
    h("span.heat-title.heat-below-title", {}, below.title ?? ""),
    h("div.heat-legend", {}, key),
  );
}

// As many labels as there is room for, each at the middle of its row or column.
function labels({ names }, length, most, room = 0) {
  const every = Math.ceil(length / Math.max(2, most));
  const shown = names
    ? Array.from({ length }, (_, index) => index).filter((index) => index % every === 0)
    : ticks(0, length - 1, 8).filter(Number.isInteger);
  const text = (index) => (names ? visible(names[index]) : String(index));
  const longest = shown.reduce((best, index) => Math.max(best, text(index).length), 0);
  const upright = room > 0 && (room / shown.length) < longest * 6.5;
  return shown.map((index) => {
    const place = `${((index + 0.5) / length) * 100}%`;
    return h(
      "span.heat-label",
      { class: upright ? "upright" : "", title: text(index), style: { "--place": place } },
      upright && longest > 14 ? text(index).slice(0, 14) : text(index),
    );
  });
}

/** A text with visible marks for its leading blanks and line breaks. */
export function visible(text) {
  return (
    String(text)
      .replaceAll("\n", "⏎")
      .replace(/^[ ĠĊ▁]+/, (blank) => "·".repeat(blank.length)) || "∅"
  );
}

function reduce(data, rows, columns, stepY, stepX, height, width) {
  const found = new Float64Array(height * width);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      // A group shows its strongest value, because an average would hide outliers.
      let strongest = 0;
      for (let row = y * stepY; row < Math.min(rows, (y + 1) * stepY); row++) {
        for (let column = x * stepX; column < Math.min(columns, (x + 1) * stepX); column++) {
          const value = data[row * columns + column];
          if (Math.abs(value) > Math.abs(strongest)) strongest = value;
        }
      }
      found[y * width + x] = strongest;
    }
  }
  return found;
}

function paint(canvas, cells, width, height, colours) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let index = 0; index < width * height; index++) {
    image.data.set(colours(cells[index]), index * 4);
    image.data[index * 4 + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** A bar with the scale; `change` switches between percentiles and the full range. */
export function legend(colours, change = null) {
  const stops = Array.from(
    { length: 9 },
    (_, index) => `rgb(${colours(colours.low + ((colours.high - colours.low) * index) / 8)})`,
  );
  return h(
    "div.legend",
    {},
    `${colours.below ? "≤ " : ""}${number(colours.low)}`,
    h("span.legend-bar", { style: { background: `linear-gradient(90deg, ${stops.join(",")})` } }),
    `${colours.above ? "≥ " : ""}${number(colours.high)}`,
    change
      ? h("button.small", { onclick: change }, colours.clipped ? "full range" : "without outliers")
      : null,
  );
}
