// Finds the parts of a value that can be drawn, and decides how to draw them.
//
// Shapes and common names decide. A list of tokens with as many numbers is drawn as coloured text,
// two texts named before and after as a comparison, and arrays as lines or heat maps.

import { NdArray } from "../data/arrays.js";

const PAIRS = [
  ["before", "after"],
  ["baseline", "steered"],
  ["original", "steered"],
  ["unsteered", "steered"],
  ["plain", "steered"],
  ["clean", "patched"],
  ["base", "tuned"],
];
const MOST = 12;
const SMALLEST = 8; // numbers; fewer are easier to read as text

/**
 * Views of a value: `{kind: "tokens" | "pair" | "array", title, ...}`. `name` is the function that
 * returned the value; it helps to name the axes.
 */
export function findViews(value, name = "") {
  const found = [];
  look(value, "", found, 0, null, name);
  return found.slice(0, MOST);
}

function look(value, path, found, depth, axes, name) {
  if (depth > 6 || found.length >= MOST || value === null || typeof value !== "object") return;
  const array = asArray(value);
  if (array) {
    if (array.shape[0] === null || array.parts || array.size >= SMALLEST)
      found.push({ kind: "array", title: path || "result", array, axes });
    return;
  }
  if (Array.isArray(value)) {
    if (!pairsOfTokens(value, path, found))
      value
        .slice(0, MOST)
        .forEach((item, index) => look(item, `${path}[${index}]`, found, depth + 1, null, name));
    return;
  }
  if (namedNumbers(value, path, found)) return;
  const used = new Set([...tokens(value, path, found, name), ...pair(value, path, found)]);
  for (const [key, item] of Object.entries(value))
    if (!used.has(key)) look(item, path ? `${path}.${key}` : key, found, depth + 1, namedAxes(value), name);
}

function asArray(value) {
  if (value instanceof NdArray) return value;
  if (!Array.isArray(value)) return null;
  if (
    value.length &&
    value.every((item) => item instanceof NdArray && !item.parts && item.shape.length === 1)
  )
    return NdArray.stack(value);
  return NdArray.of(value);
}

function isTokens(value) {
  return (
    Array.isArray(value) && value.length > 0 && value.every((item) => typeof item === "string")
  );
}

// Axes that the function names itself: {"axes": ["layer", "head", "token"], ...}
function namedAxes(value) {
  return isTokens(value.axes) ? value.axes : null;
}

// {"tokens": [...], "attribution": [...]}: one view for each list of numbers of the same length.
function tokens(value, path, found, functionName) {
  const name = ["tokens", "str_tokens", "token_strings", "words", "labels"].find((key) =>
    isTokens(value[key]),
  );
  if (!name) return [];
  const texts = value[name];
  const used = [];
  for (const [key, item] of Object.entries(value)) {
    const array = asArray(item);
    if (!array) continue;
    const title = path ? `${path}.${key}` : key;
    const [rows, columns] = array.shape;
    const fits = rows === texts.length || rows === null;
    if (array.shape.length === 1 && fits)
      found.push({ kind: "tokens", title, tokens: texts, array });
    else if (array.shape.length === 2 && (fits || columns === texts.length || columns === null)) {
      const layers = Array.isArray(value.layers) ? value.layers.map(String) : null;
      const other = layers || /layer|lens/i.test(`${functionName} ${key}`) ? "layer" : "row";
      const sides = [rows === texts.length, columns === texts.length || columns === null];
      const [rowNames, columnNames] = sides.map((isToken, side) =>
        isToken ? texts : layers?.length === array.shape[side] ? layers : null,
      );
      const axes = namedAxes(value) ?? sides.map((isToken) => (isToken ? "token" : other));
      // Layers that label an axis are not drawn as numbers.
      if ([rowNames, columnNames].includes(layers)) used.push("layers");
      found.push({ kind: "array", title, array, rowNames, columnNames, axes });
    } else continue;
    used.push(key);
  }
  return used.length ? [name, ...used] : [];
}

// {"he": 0.4, "she": 0.1}
function namedNumbers(value, path, found) {
  const [names, numbers] = [Object.keys(value), Object.values(value)];
  if (names.length < 2 || names.length > 200) return false;
  if (!numbers.every((item) => typeof item === "number")) return false;
  found.push({
    kind: "tokens",
    title: path || "result",
    tokens: names,
    array: NdArray.of(numbers),
    bars: true,
  });
  return true;
}

// [{"token": " the", "logit": 1.5}, ...] or [[" the", 1.5], ...]
function pairsOfTokens(value, path, found) {
  const split = (item) => {
    const parts = Array.isArray(item)
      ? item
      : item && typeof item === "object" && !(item instanceof NdArray)
        ? Object.values(item)
        : [];
    const text = parts.find((part) => typeof part === "string");
    const score = parts.find((part) => typeof part === "number");
    return parts.length === 2 && text !== undefined && score !== undefined ? [text, score] : null;
  };
  const pairs = value.map(split);
  if (value.length < 2 || pairs.some((item) => item === null)) return false;
  found.push({
    kind: "tokens",
    title: path || "result",
    tokens: pairs.map(([text]) => text),
    array: NdArray.of(pairs.map(([, score]) => score)),
    bars: true,
  });
  return true;
}

function pair(value, path, found) {
  for (const [left, right] of PAIRS) {
    if (typeof value[left] === "string" && typeof value[right] === "string") {
      found.push({
        kind: "pair",
        field: `pair:${path}`,
        title: path || `${left} → ${right}`,
        names: [left, right],
        texts: [value[left], value[right]],
      });
      return [left, right];
    }
  }
  return [];
}
