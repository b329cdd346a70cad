// How a run stands, as a word with a colour.

import { h } from "./dom.js";

const KNOWN = new Set(["running", "completed", "limit", "cancelled", "error", "crashed"]);

/** The word. */
export function statusChip(status) {
  const name = KNOWN.has(status) ? status : "unknown";
  return h(`span.status.status-${name}`, {}, h("span.status-dot"), name);
}
