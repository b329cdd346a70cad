// Terminal output: colours become spans, and other escape codes are dropped.

import { h, textNode } from "../draw/dom.js";

const SEQUENCE =
  /\x1b(?:\[([0-9;]{0,40})([A-Za-z])|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[()][A-Z0-9]|[A-Z=>])/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const LONGEST = 400000;

/** The text as nodes. */
export function terminal(text) {
  if (!text.includes("\x1b") || text.length > LONGEST)
    return [textNode(overwritten(text))];
  const nodes = [];
  const state = { colour: "", bold: false };
  let last = 0;
  const push = (part) => {
    if (!part) return;
    const names = [state.colour && `ansi-${state.colour}`, state.bold && "ansi-bold"].filter(
      Boolean,
    );
    nodes.push(
      names.length ? h(`span.${names.join(".")}`, {}, part) : textNode(part),
    );
  };
  for (const match of text.matchAll(SEQUENCE)) {
    push(text.slice(last, match.index));
    last = match.index + match[0].length;
    if (match[2] === "m") apply(state, match[1]);
  }
  push(text.slice(last));
  return nodes;
}

function apply(state, codes) {
  const numbers = codes.split(";").map(Number);
  for (let index = 0; index < numbers.length; index++) {
    const code = numbers[index];
    if (code === 0) Object.assign(state, { colour: "", bold: false });
    else if (code === 1) state.bold = true;
    else if (code === 22) state.bold = false;
    else if (code === 39) state.colour = "";
    else if (code >= 30 && code <= 37) state.colour = NAMES[code - 30];
    else if (code >= 90 && code <= 97) state.colour = NAMES[code - 90];
    else if (code === 38 || code === 48) {
      const wide = numbers[index + 1] === 5;
      if (code === 38 && wide) state.colour = NAMES[numbers[index + 2] % 8] ?? "";
      index += wide ? 2 : 4;
    }
  }
}

// A progress bar overwrites its line. As in a terminal, only the last version is shown.
function overwritten(text) {
  if (!text.includes("\r")) return text;
  return text
    .split("\n")
    .map((line) => line.replace(/\r+$/, "").split("\r").pop())
    .join("\n");
}
