// The content of entries without times and ids, for searching and for comparing two runs.

import { textOf } from "./record.js";

/** The content of an item, without times, ids and durations. */
export function essence(item) {
  const { event } = item;
  const plain = (value) => JSON.stringify(value ?? null);
  if (item.type === "run_started") return ["task", textOf(event.task)];
  if (item.type === "tool_call") {
    const result = item.result
      ? [plain(item.result.content), String(Boolean(item.result.is_error))]
      : [];
    return ["tool", String(event.name), plain(event.arguments), ...result];
  }
  if (item.type === "run_finished") return ["finished", String(event.reason)];
  return [item.type, textOf(event.text) || plain(event.text), textOf(event.message)];
}

/** The index at which two lists of items first differ, or -1. */
export function firstDivergence(left, right) {
  const length = Math.max(left.length, right.length);
  for (let index = 0; index < length; index++) {
    if (!left[index] || !right[index]) return index;
    const [a, b] = [essence(left[index]), essence(right[index])];
    if (a.length !== b.length || a.some((part, at) => part !== b[at])) return index;
  }
  return -1;
}
