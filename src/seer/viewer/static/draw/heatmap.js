// A matrix as a picture: one cell per number, or per group of them where there are too many.

import { h } from "./dom.js";
import { number } from "../text/format.js";
import { scale } from "./colours.js";

const MOST = 512; // cells along one side

/** A heat map of `rows` × `columns` numbers. */
export function heatmap(
  data,
  rows,
  columns,
  { rowNames = null, columnNames = null, rowTitle = "", columnTitle = "" } = {},
) {
  const [stepY, stepX] = [Math.ceil(rows / MOST), Math.ceil(columns / MOST)];
  const [height, width] = [Math.ceil(rows / stepY), Math.ceil(columns / stepX)];
  const cells =
    stepX * stepY === 1 ? data : reduce(data, rows, columns, stepY, stepX, height, width);
  const canvas = h("canvas.heat", { role: "img", "aria-label": `heat map, ${rows} by ${columns}` });
  [canvas.width, canvas.height] = [width, height];
  const tip = h("div.tip", { hidden: true });
  const colours = scale(cells);
  paint(canvas, cells, width, height, colours);
  // Cells keep a shape that can be seen: never thinner than a few pixels, never one huge block.
  const cell = Math.min(26, Math.max(3, Math.floor(260 / height)));
  canvas.style.height = `${Math.min(420, height * cell)}px`;
  canvas.onpointermove = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(width - 1, Math.floor(((event.clientX - box.left) / box.width) * width));
    const y = Math.min(height - 1, Math.floor(((event.clientY - box.top) / box.height) * height));
    const [row, column] = [Math.max(0, y) * stepY, Math.max(0, x) * stepX];
    tip.hidden = false;
    tip.textContent = `${rowNames?.[row] ?? `${rowTitle}[${row}]`} · ${columnNames?.[column] ?? `${columnTitle}[${column}]`}: ${number(cells[y * width + x])}`;
    tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - 120)}px`;
    tip.style.top = `${event.clientY - box.top + 14}px`;
  };
  canvas.onpointerleave = () => (tip.hidden = true);
  const labels =
    columnNames && columnNames.length <= 64
      ? h(
          "div.heat-columns",
          { style: { "grid-template-columns": `repeat(${columnNames.length}, 1fr)` } },
          columnNames.map((name) => h("span", { title: name }, visible(name))),
        )
      : null;
  const sides =
    rowNames && rowNames.length <= 40
      ? h(
          "div.heat-rows",
          {},
          rowNames.map((name) => h("span", { title: name }, visible(name))),
        )
      : null;
  return h(
    "div.heatmap",
    {},
    h("div.heat-body", {}, sides, h("div.heat-cells", {}, canvas, tip)),
    labels,
    legend(colours),
  );
}

/** A text whose blanks can be seen. */
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
      // The strongest value of a group: what stands out must not be averaged away.
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

/** The scale as a bar. */
export function legend(colours) {
  const stops = Array.from(
    { length: 9 },
    (_, index) => `rgb(${colours(colours.low + ((colours.high - colours.low) * index) / 8)})`,
  );
  return h(
    "div.legend",
    {},
    number(colours.low),
    h("span.legend-bar", { style: { background: `linear-gradient(90deg, ${stops.join(",")})` } }),
    number(colours.high),
  );
}
