// The status of a run, as a coloured word.

import { h } from "./dom.js";

const KNOWN = new Set(["running", "completed", "limit", "cancelled", "error", "crashed"]);

/** The element. */
export function statusChip(status) {
  const name = KNOWN.has(status) ? status : "unknown";
  return h(`span.status.status-${name}`, {}, h("span.status-dot"), name);
}
