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

// `runs/_compare.py` has the same three, and one test is for both.
const DONE = /^((?:\[cell [A-Za-z0-9_-]+\]\n)?\[done in )[0-9.]+( s, no output\])$/;
const GOES_ON = /^(\[(?:queued|running); )[0-9.]+( s so far\. It goes on; get_result\()/;
const JOB = /^(e[0-9]+: [a-z_]+, )[0-9.]+( s)$/gm;

/** The text of a tool's result without how long code has run, which is never the same again. */
function withoutSeconds(tool, text) {
  if (/^(.*__)?list_jobs$/s.test(tool)) return text.replace(JOB, "$1$2");
  return text.replace(DONE, "$1$2").replace(GOES_ON, "$1$2");
}

/** The content of an item as it is compared. */
function compared(item) {
  const content = item.result?.content;
  if (!Array.isArray(content)) return essence(item);
  const blocks = content.map((block) =>
    typeof block?.text === "string"
      ? { ...block, text: withoutSeconds(String(item.event.name), block.text) }
      : block,
  );
  return essence({ ...item, result: { ...item.result, content: blocks } });
}

/** The index at which two lists of items first differ, or -1. */
export function firstDivergence(left, right) {
  const length = Math.max(left.length, right.length);
  for (let index = 0; index < length; index++) {
    if (!left[index] || !right[index]) return index;
    const [a, b] = [compared(left[index]), compared(right[index])];
    if (a.length !== b.length || a.some((part, at) => part !== b[at])) return index;
  }
  return -1;
}
