// Decodes the values of gate calls, which are tagged JSON and raw buffers, into numbers to draw.

import { BlobRef, Cut, textOf } from "./record.js";
import { own } from "../draw/dom.js";

/** An array whose numbers are fetched when they are first drawn. */
export class NdArray {
  constructor(dtype, shape, digest) {
    this.dtype = dtype;
    this.shape = shape;
    this.digest = digest;
    this.data = null;
  }

  /** An array from nested lists; null if the value is not an array. */
  static of(value) {
    const shape = shapeOf(value);
    if (!shape) return null;
    const found = new NdArray("list", shape, null);
    found.data = Float64Array.from(
      shape.length === 1 ? value : value.flat(shape.length - 1),
      Number,
    );
    return found;
  }

  /** One array from several arrays of the same shape, which become its rows. */
  static stack(parts) {
    const found = new NdArray(parts[0].dtype, [parts.length, ...parts[0].shape], null);
    found.parts = parts;
    return found;
  }

  /** The name of its dtype for people: `float32`, not `<f4`. */
  get typeName() {
    const name = Object.keys(TORCH).find((one) => TORCH[one] === this.dtype);
    return name ?? this.dtype.replace(/[<|]/, "");
  }

  get size() {
    return this.shape.reduce((a, b) => a * b, 1);
  }

  /** The numbers in row-major order. The length of a long list is unknown until it is loaded. */
  async load(fetchBlob) {
    if (this.data) return this.data;
    if (this.parts) {
      const rows = await Promise.all(this.parts.map((part) => part.load(fetchBlob)));
      if (rows.some((row) => row.length !== rows[0].length))
        throw new Error("the rows differ in length");
      this.shape = [rows.length, ...this.parts[0].shape];
      this.data = Float64Array.from(
        { length: rows.length * rows[0].length },
        (_, at) => rows[Math.floor(at / rows[0].length)][at % rows[0].length],
      );
      return this.data;
    }
    const raw = await fetchBlob(this.digest);
    if (this.shape[0] === null) this.shape = [raw.byteLength / 8];
    this.data = numbers(raw, this.dtype, this.size);
    return this.data;
  }
}

function shapeOf(value) {
  const shape = [];
  for (let inner = value; Array.isArray(inner); inner = inner[0]) {
    if (!inner.length || shape.length > 4) return null;
    shape.push(inner.length);
  }
  const fits = (part, depth) =>
    depth === shape.length
      ? typeof part === "number" || part === null
      : Array.isArray(part) &&
        part.length === shape[depth] &&
        part.every((item) => fits(item, depth + 1));
  return shape.length && fits(value, 0) ? shape : null;
}

const TORCH = {
  bool: "|b1",
  uint8: "|u1",
  int8: "|i1",
  int16: "<i2",
  uint16: "<u2",
  int32: "<i4",
  uint32: "<u4",
  int64: "<i8",
  uint64: "<u8",
  float16: "<f2",
  float32: "<f4",
  float64: "<f8",
  bfloat16: "bf16",
};
const READERS = {
  "|b1": [1, (view, at) => view.getUint8(at)],
  "|u1": [1, (view, at) => view.getUint8(at)],
  "|i1": [1, (view, at) => view.getInt8(at)],
  "<i2": [2, (view, at) => view.getInt16(at, true)],
  "<u2": [2, (view, at) => view.getUint16(at, true)],
  "<i4": [4, (view, at) => view.getInt32(at, true)],
  "<u4": [4, (view, at) => view.getUint32(at, true)],
  "<i8": [8, (view, at) => Number(view.getBigInt64(at, true))],
  "<u8": [8, (view, at) => Number(view.getBigUint64(at, true))],
  "<f4": [4, (view, at) => view.getFloat32(at, true)],
  "<f8": [8, (view, at) => view.getFloat64(at, true)],
  "<f2": [2, (view, at) => half(view.getUint16(at, true))],
  bf16: [2, (view, at) => brain(view.getUint16(at, true))],
};
const scratch = new DataView(new ArrayBuffer(4));

function brain(bits) {
  scratch.setUint32(0, bits << 16);
  return scratch.getFloat32(0);
}

function half(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function numbers(raw, dtype, size) {
  const reader = own(READERS, dtype);
  if (!reader) throw new Error(`arrays of type ${dtype} cannot be drawn`);
  const [width, read] = reader;
  if (raw.byteLength < size * width) throw new Error("the array's bytes are incomplete");
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  const found = new Float64Array(size);
  for (let index = 0; index < size; index++) found[index] = read(view, index * width);
  return found;
}

/** Parses the wire's JSON text; arrays become `NdArray`. Null if the text is missing or cut. */
export function decode(text, buffers) {
  if (text instanceof BlobRef || text instanceof Cut || typeof text !== "string" || !text)
    return null;
  try {
    return untag(JSON.parse(text), buffers ?? [], 0);
  } catch {
    return null; // text that is not JSON is shown as text
  }
}

function untag(value, buffers, depth) {
  if (depth > 100 || value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map((item) => untag(item, buffers, depth + 1));
  const digest = textOf(buffers[value.buffer]);
  const shape = Array.isArray(value.shape) ? value.shape.map(Number) : [];
  switch (value.$seer) {
    case "array":
      return new NdArray(String(value.dtype), shape, digest);
    case "torch":
      return new NdArray(own(TORCH, String(value.dtype)) ?? String(value.dtype), shape, digest);
    case "tuple":
    case "set":
    case "frozenset":
      return untag(value.items ?? [], buffers, depth + 1);
    case "floats":
      return new NdArray("<f8", [null], digest);
    case "ints":
      return new NdArray("<i8", [null], digest);
    case "dict":
      return Object.fromEntries(
        (value.items ?? []).map(([key, item]) => [
          String(untag(key, buffers, depth + 1)),
          untag(item, buffers, depth + 1),
        ]),
      );
  }
  const plain = {};
  for (const [key, item] of Object.entries(value))
    if (key !== "__proto__") plain[key] = untag(item, buffers, depth + 1);
  return plain;
}
