// Colours for code: one pass over the text with one expression per language.

import { h, own, textNode } from "../draw/dom.js";

const LONGEST = 60000;
const PYTHON_WORDS =
  "False|None|True|and|as|assert|async|await|break|case|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|nonlocal|not|or|pass|raise|return|try|while|with|yield";
const SCRIPT_WORDS =
  "async|await|break|case|catch|class|const|continue|default|delete|do|else|export|extends|false|finally|for|from|function|if|import|in|instanceof|let|new|null|of|return|static|switch|this|throw|true|try|typeof|undefined|var|void|while|yield";
const SHELL_WORDS =
  "if|then|else|elif|fi|for|while|do|done|case|esac|in|function|return|export|local|set|cd|echo|exit";
const NUMBER = "\\b(?:0[xX][0-9a-fA-F_]+|\\d[\\d_]*(?:\\.[\\d_]+)?(?:[eE][+-]?\\d+)?)\\b";
const QUOTED = "\"(?:[^\"\\\\\\n]|\\\\.)*\"?|'(?:[^'\\\\\\n]|\\\\.)*'?";

const GRAMMARS = {
  python: [
    ["comment", "#[^\\n]*"],
    ["string", `[rbfuRBFU]{0,2}(?:"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|${QUOTED})`],
    ["decorator", "(?<=^|\\n)[ \\t]*@[\\w.]+"],
    ["number", NUMBER],
    ["keyword", `\\b(?:${PYTHON_WORDS})\\b`],
    ["self", "\\b(?:self|cls)\\b"],
    ["function", "\\b[A-Za-z_]\\w*(?=\\()"],
  ],
  json: [
    ["property", '"(?:[^"\\\\\\n]|\\\\.)*"(?=\\s*:)'],
    ["string", '"(?:[^"\\\\\\n]|\\\\.)*"?'],
    ["number", `-?${NUMBER}`],
    ["keyword", "\\b(?:true|false|null)\\b"],
  ],
  script: [
    ["comment", "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)"],
    ["string", `${QUOTED}|\`(?:[^\`\\\\]|\\\\.)*\`?`],
    ["number", NUMBER],
    ["keyword", `\\b(?:${SCRIPT_WORDS})\\b`],
    ["function", "\\b[A-Za-z_$][\\w$]*(?=\\()"],
  ],
  shell: [
    ["comment", "(?<=^|\\s)#[^\\n]*"],
    ["string", QUOTED],
    ["property", "\\$\\{?\\w+\\}?"],
    ["keyword", `\\b(?:${SHELL_WORDS})\\b`],
    ["number", "(?<=\\s)-{1,2}[\\w-]+"],
  ],
};
const NAMES = {
  py: "python",
  python: "python",
  python3: "python",
  ipython: "python",
  json: "json",
  js: "script",
  javascript: "script",
  ts: "script",
  typescript: "script",
  jsx: "script",
  rust: "script",
  go: "script",
  c: "script",
  cpp: "script",
  java: "script",
  sh: "shell",
  bash: "shell",
  shell: "shell",
  console: "shell",
  zsh: "shell",
};
const compiled = new Map();

function grammar(language) {
  const name = own(NAMES, String(language).toLowerCase());
  if (!name) return null;
  if (!compiled.has(name)) {
    const parts = GRAMMARS[name];
    const all = parts
      .map(([, expression]) => `(${expression.replace(/(?<!\\)\((?!\?)/g, "(?:")})`)
      .join("|");
    compiled.set(name, { expression: new RegExp(all, "g"), kinds: parts.map(([kind]) => kind) });
  }
  return compiled.get(name);
}

/** Code as a list of nodes. */
export function highlight(text, language) {
  const found = grammar(language);
  if (!found || text.length > LONGEST) return [textNode(text)];
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(found.expression)) {
    if (!match[0]) continue;
    if (match.index > last) nodes.push(textNode(text.slice(last, match.index)));
    const kind = found.kinds[match.slice(1).findIndex((group) => group !== undefined)];
    nodes.push(h(`span.code-${kind}`, {}, match[0]));
    last = match.index + match[0].length;
  }
  nodes.push(textNode(text.slice(last)));
  return nodes;
}

/** A block of code with a button that copies it; `label` says its language. */
export function codeBlock(text, language = "", label = language) {
  const name = String(label).slice(0, 24);
  const copy = h("button.copy", { title: "Copy", onclick: () => copyText(text, copy) }, "copy");
  return h(
    "div.code",
    {},
    name ? h("span.code-language", {}, name) : null,
    copy,
    h("pre", { tabindex: "0" }, h("code", {}, highlight(text, language))),
  );
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    button.textContent = "not allowed";
  }
  setTimeout(() => (button.textContent = "copy"), 1200);
}
