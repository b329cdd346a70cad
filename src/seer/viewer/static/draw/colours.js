// Colour scales. Values on both sides of zero get two hues; other values get one sequential scale.

import { isDark } from "./theme.js";

const DIVERGING = {
  light: [
    [33, 72, 161],
    [103, 154, 220],
    [246, 246, 248],
    [240, 138, 98],
    [178, 34, 52],
  ],
  dark: [
    [116, 176, 255],
    [45, 88, 160],
    [26, 28, 36],
    [172, 74, 44],
    [255, 150, 110],
  ],
};
const RISING = {
  light: [
    [247, 247, 252],
    [196, 203, 240],
    [125, 138, 224],
    [79, 70, 201],
    [38, 22, 110],
  ],
  dark: [
    [22, 23, 32],
    [48, 42, 110],
    [98, 76, 196],
    [168, 130, 246],
    [247, 224, 255],
  ],
};

function at(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const rest = place - low;
  return stops[low].map((part, index) => Math.round(part + (stops[low + 1][index] - part) * rest));
}

// Pairs of two numbers: the share of values at each end that may be outliers, and how many times
// the span of the other values the whole range must exceed for that. The first token of a prompt
// often has activations a thousand times as large as the others, and in a short prompt its column
// is a fifth of all values.
const OUTLIERS = [
  [0.02, 3],
  [0.06, 6],
  [0.12, 10],
  [0.2, 20],
];

// The bounds without outliers; null if no outliers hide the differences between the other values.
function withoutOutliers(sorted) {
  const last = sorted.length - 1;
  if (sorted.length < 6) return null;
  for (const [share, times] of OUTLIERS) {
    const step = Math.max(1, Math.ceil(last * share));
    const [low, high] = [sorted[step], sorted[last - step]];
    const span = high - low;
    if (!(span > 0) || sorted[last] - sorted[0] <= times * span) continue;
    // An end without outliers keeps its values.
    return [
      low - sorted[0] > span ? low : sorted[0],
      sorted[last] - high > span ? high : sorted[last],
    ];
  }
  return null;
}

/**
 * A function from a value to [r, g, b], with `low`, `high` and `diverging`. If it is `clipped`, a
 * bound is a percentile, and values beyond it (`below`, `above`) have the colour of the bound.
 * `whole` keeps the full range.
 */
export function scale(values, { whole = false } = {}) {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort();
  const robust = whole ? null : withoutOutliers(sorted);
  const [low, high] = robust ?? (sorted.length ? [sorted[0], sorted[sorted.length - 1]] : [0, 1]);
  const mode = isDark() ? "dark" : "light";
  const diverging = low < 0 && high > 0;
  const bound = Math.max(-low, high) || 1;
  const found = diverging
    ? (value) => at(DIVERGING[mode], (value / bound + 1) / 2)
    : (value) => at(RISING[mode], high === low ? 0.5 : (value - low) / (high - low));
  const bounds = diverging ? { low: -bound, high: bound } : { low, high };
  return Object.assign(
    (value) => (Number.isFinite(value) ? found(value) : [128, 128, 128]),
    {
      ...bounds,
      diverging,
      clipped: robust !== null,
      below: sorted[0] < bounds.low,
      above: sorted[sorted.length - 1] > bounds.high,
    },
  );
}

/** The text colour, dark or light, that is readable on a background. */
export function readable([red, green, blue]) {
  return red * 0.299 + green * 0.587 + blue * 0.114 > 140 ? "#14151a" : "#f6f6fa";
}

const light = (hue) => `hsl(${hue} 58% 52%)`;
const dark = (hue) => `hsl(${hue} 38% 52%)`;
const HUES = [245, 160, 25, 330, 200, 95, 280, 50];

/** Gives each name a fixed colour, in the order in which the names appear. */
export class Palette {
  #names = new Map();

  #hue(name) {
    if (!this.#names.has(name)) this.#names.set(name, this.#names.size);
    return HUES[this.#names.get(name) % HUES.length];
  }

  /** The colour for a style. It follows the page's theme. */
  of(name) {
    return `light-dark(${light(this.#hue(name))}, ${dark(this.#hue(name))})`;
  }

  /** The colour for a canvas, which must be drawn again when the theme changes. */
  now(name) {
    return (isDark() ? dark : light)(this.#hue(name));
  }
}
