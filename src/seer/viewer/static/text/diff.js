// Where two texts, or two runs, part.

import { textOf } from "../data/record.js";

const MOST = 1200; // words; beyond that only the common beginning and end are found

/** Two lists of `{text, same}`, one per side. */
export function wordDiff(left, right) {
  const split = (text) => text.match(/\s+|[\w'’-]+|[^\w\s]/gu) ?? [];
  const [a, b] = [split(left), split(right)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (
    end < a.length - start &&
    end < b.length - start &&
    a[a.length - 1 - end] === b[b.length - 1 - end]
  )
    end++;
  const [midA, midB] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const [markA, markB] =
    midA.length * midB.length > MOST * MOST
      ? [midA.map(() => false), midB.map(() => false)]
      : common(midA, midB);
  const head = { text: a.slice(0, start).join(""), same: true };
  const tail = { text: a.slice(a.length - end).join(""), same: true };
  return [
    [head, ...runs(midA, markA), tail],
    [head, ...runs(midB, markB), tail],
  ];
}

// Which words belong to the longest common sequence.
function common(a, b) {
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] =
        a[i] === b[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const [markA, markB] = [a.map(() => false), b.map(() => false)];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) [markA[i++], markB[j++]] = [true, true];
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return [markA, markB];
}

function runs(words, same) {
  // A blank between two words that differ belongs to them.
  const marks = same.map(
    (one, at) =>
      one && !(words[at].trim() === "" && same[at - 1] === false && same[at + 1] === false),
  );
  const found = [];
  words.forEach((text, index) => {
    const last = found[found.length - 1];
    if (last && last.same === marks[index]) last.text += text;
    else found.push({ text, same: marks[index] });
  });
  return found;
}

/** What an item says, without what differs by chance: times, ids, durations. */
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

/** The first place where two lists of items differ, or -1. */
export function firstDivergence(left, right) {
  const length = Math.max(left.length, right.length);
  for (let index = 0; index < length; index++) {
    if (!left[index] || !right[index]) return index;
    const [a, b] = [essence(left[index]), essence(right[index])];
    if (a.length !== b.length || a.some((part, at) => part !== b[at])) return index;
  }
  return -1;
}
