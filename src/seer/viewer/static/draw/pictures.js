// Draws views of values: coloured tokens, texts before and after, and arrays.

import { fill, h } from "./dom.js";
import { heatmap, legend, visible } from "./heatmap.js";
import { lineChart } from "./lines.js";
import { number } from "../text/format.js";
import { readable, scale } from "./colours.js";
import { build } from "../text/fragment.js";

const MOST_NUMBERS = 4_000_000;

/** Draws a view. `place` says where its value comes from: `fetcher`, `kind` and `at`. */
export function picture(view, place) {
  const shape =
    view.array && view.array.shape[0] !== null
      ? `${view.array.dtype === "list" ? "" : `${view.array.typeName} `}${view.array.shape.map((side) => side ?? "?").join(" × ")}`
      : "";
  const body = h(
    "div.picture-body",
    {},
    view.kind === "pair" ? before(view, place) : h("div.picture-wait", {}, "loading…"),
  );
  const element = h(
    "figure.picture",
    {},
    h(
      "figcaption",
      {},
      h("span.picture-title", {}, view.title),
      h("span.picture-shape", {}, shape),
    ),
    body,
  );
  if (view.kind !== "pair") load(view, body, place.fetcher.blob);
  return element;
}

async function load(view, body, fetchBlob) {
  try {
    if (view.array.size > MOST_NUMBERS)
      throw new Error(`${view.array.size.toLocaleString("en")} numbers are too many to draw`);
    const data = await view.array.load(fetchBlob);
    const show = () => fill(body, view.kind === "tokens" ? tokens(view, data) : array(view, data));
    show();
    // The colours differ between the dark and the light theme.
    const again = () => (body.isConnected ? show() : removeEventListener("seer-theme", again));
    addEventListener("seer-theme", again);
  } catch (error) {
    fill(body, h("div.picture-wait", {}, `not drawn: ${error.message}`));
  }
}

function tokens(view, data) {
  if (data.length !== view.tokens.length) return array(view, data);
  const colours = scale(data);
  if (view.bars) return bars(view, data, colours);
  const spans = view.tokens.map((token, index) => {
    const rgb = colours(data[index]);
    const span = h(
      "span.token",
      {
        title: `${visible(token)}  ${number(data[index])}`,
        style: { background: `rgb(${rgb})`, color: readable(rgb) },
      },
      token.replace(/^[Ġ▁]/, " ").replaceAll("Ċ", "⏎"),
    );
    return /\n/.test(token) ? [span, h("br")] : span;
  });
  return h("div.token-view", {}, h("div.tokens", {}, spans), legend(colours));
}

function bars(view, data, colours) {
  const most = data.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
  return h(
    "div.bars",
    {},
    view.tokens.map((token, index) => [
      h("span.bar-name", { title: token }, visible(token)),
      h(
        "span.bar-track",
        {},
        h("span.bar", {
          style: {
            width: `${(Math.abs(data[index]) / most) * 100}%`,
            background: `rgb(${colours.diverging ? colours(data[index]) : colours(colours.low + (colours.high - colours.low) * 0.66)})`,
          },
        }),
      ),
      h("span.bar-value", {}, number(data[index])),
    ]),
  );
}

// Two texts side by side; the server marks the differences.
function before(view, { fetcher, kind, at }) {
  const bodies = view.texts.map((text) => h("div.side-text", {}, text));
  Promise.resolve(at === undefined ? {} : fetcher.fragments(kind, at)).then((found) =>
    found[view.field]?.forEach((fragment, side) => fill(bodies[side], build(fragment))),
  );
  return h(
    "div.before-after",
    {},
    ["was", "is"].map((kind, side) =>
      h(`div.side.${kind}`, {}, h("div.side-name", {}, view.names[side]), bodies[side]),
    ),
  );
}

function array(view, data) {
  const shape = view.array.shape.length ? view.array.shape : [1];
  if (shape.length === 1 || (shape.length === 2 && shape[0] === 1))
    return vector(data, view.axes?.[shape.length - 1] ?? "");
  const [rows, columns] = shape.slice(-2);
  const outer = shape.slice(0, -2);
  const place = outer.map(() => 0);
  const body = h("div");
  const draw = () => {
    const slice = place.reduce((offset, index, axis) => offset * outer[axis] + index, 0);
    const part = data.subarray(slice * rows * columns, (slice + 1) * rows * columns);
    fill(body, plane(view, part, rows, columns));
  };
  const sliders = outer.map((length, axis) =>
    slider(view.axes?.[axis] ?? `axis ${axis}`, length, (index) => ((place[axis] = index), draw())),
  );
  draw();
  return h("div", {}, sliders, body);
}

function slider(name, length, changed) {
  const shown = h("output", {}, "0");
  const input = h("input", {
    type: "range",
    min: "0",
    max: String(length - 1),
    value: "0",
    "aria-label": name,
  });
  input.oninput = () => ((shown.textContent = input.value), changed(Number(input.value)));
  return h("label.slider", {}, name, input, shown);
}

function plane(view, data, rows, columns) {
  const titles = (view.axes ?? []).slice(-2);
  const map = () =>
    heatmap(data, rows, columns, {
      side: { names: view.rowNames, title: titles[0] },
      below: { names: view.columnNames, title: titles[1] },
    });
  if (rows > 8 || columns < 4) return map();
  const lines = () =>
    lineChart(
      Array.from({ length: rows }, (_, row) => ({
        points: Array.from(data.subarray(row * columns, (row + 1) * columns), (y, x) => [x, y]),
        name: `row ${row}`,
      })),
      { xTitle: titles[1] ?? "" },
    );
  const body = h("div", {}, map());
  const toggle = h(
    "button.small",
    {
      onclick: () => (
        (toggle.textContent = toggle.textContent === "as lines" ? "as a map" : "as lines"),
        fill(body, toggle.textContent === "as lines" ? map() : lines())
      ),
    },
    "as lines",
  );
  return h("div", {}, body, toggle);
}

function vector(data, title) {
  if (data.length === 1) return h("div.single", {}, number(data[0]));
  let [low, high, sum] = [Infinity, -Infinity, 0];
  for (const value of data)
    [low, high, sum] = [Math.min(low, value), Math.max(high, value), sum + value];
  return h(
    "div",
    {},
    lineChart([{ points: Array.from(data, (y, x) => [x, y]) }], {
      height: title ? 144 : 130,
      xTitle: title,
    }),
    h(
      "div.stats",
      {},
      `min ${number(low)}  ·  mean ${number(sum / data.length)}  ·  max ${number(high)}`,
    ),
  );
}
