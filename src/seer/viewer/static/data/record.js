// Decodes recorded lines: references to blobs, escaped keys and cut values.

/** A large value in a file beside the record. */
export class BlobRef {
  constructor(digest, size, binary) {
    this.digest = digest;
    this.size = size;
    this.binary = binary;
  }
}

/** A value that the server cut; it sent only the beginning. */
export class Cut {
  constructor(kept, count) {
    this.kept = kept;
    this.count = count;
  }
}

/** A line's body as plain values, with `BlobRef` and `Cut` where something is left out. */
export function unpack(value, depth = 0) {
  if (depth > 200) return null;
  if (Array.isArray(value)) return value.map((item) => unpack(item, depth + 1));
  if (value === null || typeof value !== "object") return value;
  if (Object.hasOwn(value, "$blob")) {
    return new BlobRef(String(value.$blob), Number(value.bytes) || 0, value.encoding === "base64");
  }
  if (Object.hasOwn(value, "$cut"))
    return new Cut(unpack(value.$cut, depth + 1), Number(value.count) || 0);
  const plain = {};
  for (const [key, item] of Object.entries(value)) {
    if (key === "__proto__") continue;
    plain[key.startsWith("$$") ? key.slice(1) : key] = unpack(item, depth + 1);
  }
  return plain;
}

/** The part of a text that the page has: a whole string, or the beginning of a cut value. */
export function textOf(value) {
  if (typeof value === "string") return value;
  if (value instanceof Cut) return textOf(value.kept);
  if (value instanceof BlobRef || value === null || value === undefined) return "";
  return String(value);
}

/** Whether `textOf` returns less than the whole text. */
export function isPartial(value) {
  return value instanceof BlobRef || value instanceof Cut;
}

/** The bytes of a base64 text. */
export function fromBase64(text) {
  const binary = atob(text);
  const found = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) found[index] = binary.charCodeAt(index);
  return found;
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"]);

/** The address of a picture's bytes, for an <img>; null if the type is not a picture. */
export function pictureAddress(data, type) {
  const name = String(type).toLowerCase();
  return PICTURES.has(name) ? URL.createObjectURL(new Blob([data], { type: name })) : null;
}
