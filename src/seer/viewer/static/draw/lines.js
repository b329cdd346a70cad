// Draws numbers as lines over their index or over time.

import { number } from "../text/format.js";
import { s } from "./dom.js";

const LETTER = 6.4; // the width of a letter in an axis label

/** Round values between two bounds, for an axis. */
export function ticks(low, high, wanted = 4) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / wanted;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step =
    [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= raw) ?? unit * 10;
  const found = [];
  for (
    let value = Math.ceil(low / step) * step;
    value <= high + step * 1e-9 && found.length < 12;
    value += step
  )
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}

/**
 * A chart of series `{points: [[x, y], ...], className, area, step, name}`.
 * `marks` are dashed levels `{y, label}`; `bounds` fixes the axes.
 */
export function lineChart(
  series,
  {
    height = 160,
    marks = [],
    bounds = {},
    formatX = number,
    formatY = number,
    label = "line chart",
    xTitle = "",
  } = {},
) {
  const WIDTH = innerWidth < 860 ? 380 : 640; // keeps letters readable on a narrow page
  const finite = (value) => Number.isFinite(value);
  const points = series.flatMap((one) => one.points).filter(([x, y]) => finite(x) && finite(y));
  const extent = (values, low, high) => [
    low ?? values.reduce((a, b) => Math.min(a, b), Infinity),
    high ?? values.reduce((a, b) => Math.max(a, b), -Infinity),
  ];
  let [x0, x1] = extent(
    points.map(([x]) => x),
    bounds.x0,
    bounds.x1,
  );
  let [y0, y1] = extent(
    [...points.map(([, y]) => y), ...marks.map((mark) => mark.y)],
    bounds.y0,
    bounds.y1,
  );
  if (!finite(x0) || !finite(x1)) [x0, x1] = [0, 1];
  if (!finite(y0) || !finite(y1)) [y0, y1] = [0, 1];
  if (x0 === x1) x1 = x0 + 1;
  if (y0 === y1) [y0, y1] = [y0 - 0.5, y1 + 0.5];
  const [rows, columns] = [ticks(y0, y1, 5), ticks(x0, x1, 6)];
  // Room for the longest label on the left, and for half of the last label of the x axis.
  const longest = rows.reduce((most, y) => Math.max(most, formatY(y).length), 0);
  const PADDING = { left: longest * LETTER + 12, right: 14, top: 9, bottom: xTitle ? 34 : 20 };
  const X = (x) => PADDING.left + ((x - x0) / (x1 - x0)) * (WIDTH - PADDING.left - PADDING.right);
  const Y = (y) =>
    height - PADDING.bottom - ((y - y0) / (y1 - y0)) * (height - PADDING.top - PADDING.bottom);
  const axis = [
    ...rows.flatMap((y) => [
      s("line", { class: "grid", x1: PADDING.left, x2: WIDTH - PADDING.right, y1: Y(y), y2: Y(y) }),
      s(
        "text",
        { class: "tick", x: PADDING.left - 6, y: Y(y) + 3.5, "text-anchor": "end" },
        formatY(y),
      ),
    ]),
    ...columns.map((x) =>
      s(
        "text",
        {
          class: "tick",
          x: X(x),
          y: height - PADDING.bottom + 15,
          "text-anchor": X(x) > WIDTH - 40 ? "end" : X(x) < 30 ? "start" : "middle",
        },
        formatX(x),
      ),
    ),
    s("text", { class: "tick", x: WIDTH / 2, y: height - 4, "text-anchor": "middle" }, xTitle),
  ];
  const drawn = series.flatMap((one, index) =>
    draw(one, index, X, Y, Y(Math.max(y0, Math.min(0, y1)))),
  );
  const levels = marks.map((mark) => [
    s("line", {
      class: "mark",
      x1: PADDING.left,
      x2: WIDTH - PADDING.right,
      y1: Y(mark.y),
      y2: Y(mark.y),
    }),
    s(
      "text",
      { class: "mark-label", x: WIDTH - PADDING.right, y: Y(mark.y) + 12, "text-anchor": "end" },
      mark.label ?? "",
    ),
  ]);
  return s(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label },
    axis,
    levels,
    drawn,
  );
}

function draw(one, index, X, Y, floor) {
  const points = thin(one.points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y)));
  if (!points.length) return [];
  let path = `M${X(points[0][0]).toFixed(1)} ${Y(points[0][1]).toFixed(1)}`;
  for (let at = 1; at < points.length; at++) {
    const [x, y] = [X(points[at][0]).toFixed(1), Y(points[at][1]).toFixed(1)];
    path += one.step ? `H${x}V${y}` : `L${x} ${y}`;
  }
  const kind = one.className ?? `line-${index % 8}`;
  const area = one.area
    ? s("path", {
        class: `area ${kind}`,
        d: `${path}V${floor.toFixed(1)}H${X(points[0][0]).toFixed(1)}Z`,
      })
    : null;
  return [area, s("path", { class: `line ${kind}`, d: path })];
}

// With more points than pixels, keeps the lowest and the highest point of each group.
function thin(points, most = 1200) {
  if (points.length <= most) return points;
  const step = Math.ceil((points.length / most) * 2);
  const found = [];
  for (let at = 0; at < points.length; at += step) {
    const group = points.slice(at, at + step);
    const low = group.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = group.reduce((a, b) => (b[1] > a[1] ? b : a));
    found.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  }
  return found;
}
