// Draws one entry of the transcript, depending on its type.

import { BlobRef, fromBase64, isPartial, pictureAddress, textOf } from "../data/record.js";
import { build, codeBlock, markdown, rich } from "../text/fragment.js";
import { count, counted, dollars, duration, since } from "../text/format.js";
import { fill, h, icon, own } from "../draw/dom.js";
import { decode } from "../data/arrays.js";
import { findViews } from "../draw/views.js";
import { firstLine, toolSummary } from "../data/model.js";
import { longText } from "../text/long.js";
import { picture } from "../draw/pictures.js";
import { terminal } from "../text/ansi.js";
import { tree } from "../draw/tree.js";

const LARGEST = 4_000_000; // bytes; a smaller result is fetched for its pictures
const FIRST_PICTURES = 4; // of a tool call, before the user asks for more
const MORE_PICTURES = 20;
const drawable = new WeakMap(); // whether a call's result has pictures, by call

const RENDERERS = {
  run_started: started,
  user_message: spoken,
  message_not_delivered: undelivered,
  text: spoken,
  thinking: thought,
  tool_call: tool,
  tool_result: strayResult,
  limit_reached: limit,
  answer_finished: cut,
  error: failure,
  run_finished: finished,
};

/** The entry as an element. `view` has `fetcher`, `level`, `start`, and `toggle(item)`. */
export function entry(item, view) {
  const render = own(RENDERERS, item.type) ?? unknown;
  const turn = item.opensTurn ? turnLine(item, view) : null;
  return h(
    `article.entry.entry-${render === unknown ? "unknown" : item.type}`,
    { data: { seq: String(item.at) } },
    turn,
    render(item, view),
    view.raw
      ? h(
          "button.raw",
          {
            title: "Show the recorded line",
            "aria-label": "Show the recorded line",
            onclick: () => view.raw(item),
          },
          "{ }",
        )
      : null,
  );
}

function turnLine(item, view) {
  const turn = view.turns.get(item.turn);
  const facts = [
    since(item.time - view.start),
    turn?.tokens ? `${count(turn.tokens)} tokens` : "",
    turn?.cost ? dollars(turn.cost) : "",
  ].filter(Boolean);
  return h(
    "div.turn",
    {},
    h("span.turn-number", {}, `Turn ${item.turn}`),
    h("span.turn-facts", {}, facts.join("  ·  ")),
  );
}

function lead(name, label, extra) {
  return h("header.lead", {}, icon(name), h("span.lead-name", {}, label), extra);
}

function started(item, view) {
  const { event } = item;
  const tools = Array.isArray(event.tools) ? event.tools : [];
  const prompt = event.system_prompt;
  return h(
    "section.card.task",
    {},
    lead("flag", "Task"),
    h(
      "div.body",
      {},
      said(item, "task", view),
    ),
    textOf(prompt) || isPartial(prompt)
      ? fold("System prompt", () => said(item, "system_prompt", view))
      : null,
    tools.length
      ? fold(counted(tools.length, "tool"), () =>
          h(
            "dl.tools",
            {},
            tools.map((one) => [
              h("dt", {}, String(one.name), h("span.server", {}, String(one.server ?? ""))),
              h("dd", {}, firstLine(one.description, 200)),
            ]),
          ),
        )
      : null,
  );
}

function fold(label, make) {
  const details = h("details.fold", {}, h("summary", {}, label));
  const fillIn = () => details.childElementCount < 2 && details.append(make());
  details.addEventListener("toggle", fillIn);
  return details;
}

// A field of an event, formatted.
function said({ event, at }, field, view) {
  return rich(event[field], { fetcher: view.fetcher, kind: "events", at, field });
}

function spoken(item, view) {
  const body = h("div.body", {}, said(item, "text", view));
  return item.type === "text"
    ? h("section.said", {}, body)
    : h("section.card.user", {}, lead("user", "You"), body);
}

function thought(item, view) {
  const open = view.isOpen(item);
  const head = h(
    "button.thought-head",
    { "aria-expanded": String(open), onclick: () => view.toggle(item) },
    icon("think"),
    h("span", {}, "Thinking"),
    open ? null : summary(item, view),
  );
  return h(
    "section.thought",
    {},
    head,
    open ? h("div.body", {}, said(item, "text", view)) : null,
  );
}

// The first line of the agent's thoughts, without Markdown syntax.
function summary({ event, at }, view) {
  const element = h("span.summary", {}, firstLine(event.text, 160));
  Promise.resolve(view.fetcher.fragments("events", at)).then(
    ({ text }) => text && fill(element, firstLine(markdown(build(text)).textContent, 160)),
    (error) => fill(element, error.message),
  );
  return element;
}

function tool(item, view) {
  const { event, result } = item;
  const open = view.isOpen(item);
  const state =
    result === null ? (view.live() ? "running" : "lost") : result.is_error ? "failed" : "done";
  const asked = item.asked && view.live();
  const head = h(
    "button.tool-head",
    { "aria-expanded": String(open), onclick: () => view.toggle(item) },
    h(`span.dot.${state}`, { title: state }),
    h("span.tool-name", {}, String(event.name)),
    h("span.summary", {}, toolSummary(item)),
    item.calls.length
      ? h("span.chip", { title: "calls of the gate" }, icon("gate"), count(item.calls.length))
      : null,
    h(
      "span.tool-time",
      {},
      result
        ? duration(result.seconds ?? item.endTime - item.time)
        : state === "running"
          ? asked
            ? "waits for approval"
            : "running…"
          : "no result",
    ),
  );
  return h(
    `section.card.tool.${state}`,
    {},
    head,
    asked ? question(item, view) : null,
    item.decided
      ? h(
          "p.decided",
          {},
          `${item.decided.approved ? "Approved" : "Denied"} by a ${String(item.decided.by)}`,
          item.decided.reason ? `: ${String(item.decided.reason)}` : "",
        )
      : null,
    open
      ? h("div.tool-body", {}, argumentsOf(item, view), result ? resultOf(item, view) : null)
      : null,
    view.level === "compact" ? null : pictures(item, view),
  );
}

// The pictures of the last calls of the gate, and a button that adds those of earlier ones.
function pictures(item, view) {
  const left = item.calls.filter((call) => call.ok && isDrawable(call));
  const box = h("div.pictures");
  const more = h("button.more-calls", { onclick: () => add(MORE_PICTURES) });
  const add = (most) => {
    const found = [];
    while (left.length && found.length < most) found.unshift(...callPictures(left.pop(), view));
    box.prepend(...found);
    more.textContent = counted(left.length, "more call");
    more.hidden = !left.length;
  };
  add(FIRST_PICTURES);
  return [more, box];
}

function question(item, view) {
  if (!view.approve)
    return h("p.decided", {}, "Start the viewer with --allow-control to decide here.");
  const why = h("input", { placeholder: "reason to deny", "aria-label": "Reason to deny" });
  return h(
    "div.actions.approval",
    {},
    h("button.primary", { onclick: () => view.approve(item.id, true, "") }, "Approve"),
    h("button.danger", { onclick: () => view.approve(item.id, false, why.value.trim()) }, "Deny"),
    why,
  );
}

/** Pictures of the result of a gate call; a long result is fetched first. */
export function callPictures(call, view) {
  if (call.result instanceof BlobRef && call.result.size < LARGEST) {
    const box = h("div.pictures-later");
    view.fetcher.text(call.result).then(
      (text) => box.replaceChildren(...drawn(call, text, view)),
      (error) => box.replaceChildren(h("div.wait", {}, `not loaded: ${error.message}`)),
    );
    return [box];
  }
  return drawn(call, call.result, view);
}

function isDrawable(call) {
  if (call.result instanceof BlobRef) return call.result.size < LARGEST;
  if (!drawable.has(call)) drawable.set(call, viewsOf(call, call.result).length > 0);
  return drawable.get(call);
}

function viewsOf(call, text) {
  const found = decode(text, call.result_buffers);
  return found && "result" in found ? findViews(found.result, String(call.function)) : [];
}

function drawn(call, text, view) {
  return viewsOf(call, text).map((one) =>
    picture(
      { ...one, title: one.title === "result" ? call.function : `${call.function} → ${one.title}` },
      { fetcher: view.fetcher, kind: "calls", at: call.at },
    ),
  );
}

function argumentsOf({ event, at }, view) {
  const given = event.arguments ?? {};
  const code = ["code", "command", "source", "script"].find(
    (name) => typeof given[name] === "string" || given[name] instanceof BlobRef,
  );
  const rest = Object.fromEntries(Object.entries(given).filter(([name]) => name !== code));
  return [
    code
      ? clip(
          rich(
            given[code],
            { fetcher: view.fetcher, kind: "events", at, field: "code" },
            { plain: (text) => codeBlock(text.replace(/^\n+|\s+$/g, "")), dress: codeBlock },
          ),
          view,
        )
      : null,
    Object.keys(rest).length ? h("div.json", {}, tree(rest, 2)) : null,
  ];
}

function resultOf({ result, resultAt }, view) {
  const place = { fetcher: view.fetcher, kind: "events", at: resultAt };
  const blocks = Array.isArray(result.content) ? result.content : [];
  const shown = blocks.map((block, index) =>
    block?.type === "image"
      ? image(block, view)
      : output(block?.text, { ...place, field: `content.${index}` }, view),
  );
  const structured = result.structured ?? null;
  const views = structured && typeof structured === "object" ? findViews(structured) : [];
  return h(
    `div.result${result.is_error ? ".failed" : ""}`,
    {},
    shown,
    views.map((one) => picture(one, place)),
    structured !== null && !blocks.length ? h("div.json", {}, tree(structured, 1)) : null,
  );
}

function output(text, place, view) {
  const box = (content) => h("pre.output", { tabindex: "0" }, content);
  return clip(rich(text, place, { plain: (found) => box(terminal(found)), dress: box }), view);
}

/** A picture that a tool or a cell returned; its bytes may be in a blob. */
export function image(block, view) {
  const box = h("div.image", {}, h("div.wait", {}, "loading the picture…"));
  const data =
    block.data instanceof BlobRef
      ? view.fetcher.blob(block.data.digest)
      : Promise.resolve().then(() => fromBase64(textOf(block.data)));
  data
    .then((found) => {
      const address = pictureAddress(found, block.mime_type);
      if (!address) throw new Error(`${textOf(block.mime_type)} is not a picture`);
      const element = h("img", {
        src: address,
        alt: "picture from a tool",
        onclick: () => element.classList.toggle("large"),
      });
      element.onload = () => URL.revokeObjectURL(address);
      element.onerror = () => box.replaceChildren(h("div.wait", {}, "the picture is damaged"));
      box.replaceChildren(element);
    })
    .catch((error) => box.replaceChildren(h("div.wait", {}, `no picture: ${error.message}`)));
  return box;
}

// Clips a long part at a fixed height until the user opens it.
function clip(element, view) {
  if (view.level === "full") return element;
  const box = h("div.clip", {}, element);
  const more = h(
    "button.clip-more",
    { onclick: () => (box.classList.add("whole"), more.remove()) },
    "show all",
  );
  box.append(more);
  // Only a part above that height gets the button; its height is known after the layout.
  new ResizeObserver(() => box.classList.toggle("long", element.offsetHeight > 304)).observe(
    element,
  );
  return box;
}

function strayResult(item, view) {
  return h(
    "section.card.tool",
    {},
    h("div.tool-head", {}, h("span.tool-name", {}, `${String(item.event.name)} (result)`)),
    h("div.tool-body", {}, resultOf({ result: item.event, resultAt: item.at }, view)),
  );
}

function limit({ event }, view) {
  return h(
    "section.card.notice",
    {},
    lead("alert", `Limit reached: ${String(event.limit)}`),
    h(
      "div.body",
      {},
      longText(event.message, view.fetcher, (text) => h("p", {}, text)),
    ),
  );
}

function undelivered({ event }, view) {
  return h(
    "section.card.notice",
    {},
    lead("alert", `Message not delivered: ${textOf(event.reason)}`),
    h(
      "div.body",
      {},
      longText(event.text, view.fetcher, (text) => h("p", {}, text)),
    ),
  );
}

function cut({ event }) {
  const word = event.vendor_reason == null ? "" : ` (${String(event.vendor_reason)})`;
  return h("section.card.notice", {}, lead("alert", `Incomplete answer: ${String(event.reason)}${word}`));
}

function failure({ event }, view) {
  const again = Number.isFinite(event.retry_in)
    ? `, trying again in ${duration(event.retry_in)}`
    : "";
  return h(
    "section.card.failure",
    {},
    lead("alert", `Error: ${String(event.kind)}${again}`),
    h(
      "div.body",
      {},
      longText(event.message, view.fetcher, (text) => h("pre.output", {}, text)),
    ),
  );
}

function finished({ event }, view) {
  const facts = [
    counted(event.turns, "turn"),
    counted(event.tool_calls, "tool call"),
    duration(event.seconds),
    event.tokens ? `${count(event.tokens)} tokens` : "",
    Number.isFinite(event.cost_usd) ? dollars(event.cost_usd) : "",
  ];
  return h(
    `section.card.finish.reason-${["completed", "limit", "cancelled", "error"].includes(event.reason) ? event.reason : "error"}`,
    {},
    lead(
      event.reason === "completed" ? "check" : "flag",
      `${String(event.reason)}`,
      h("span.finish-facts", {}, facts.filter(Boolean).join("  ·  ")),
    ),
    claims(view.fetcher),
    event.reason === "completed"
      ? null
      : h(
          "div.body",
          {},
          longText(event.message, view.fetcher, (text) => h("p", {}, text)),
        ),
  );
}

// The claims of the final report, each with the verdict of `seer verify`.
function claims(fetcher) {
  const box = h("div.claims");
  fetcher.claims().then(
    (found) => fill(box, verdicts(found)),
    (error) => fill(box, h("div.wait", {}, `the claims cannot be checked: ${error.message}`)),
  );
  return box;
}

function verdicts({ claims: checked, flags, problem }) {
  return [
    problem ? h("div.wait", {}, `the claims cannot be checked: ${problem}`) : null,
    checked.map((claim) =>
      h(
        "div.claim",
        { class: claim.stands ? "stands" : "falls" },
        icon(claim.stands ? "check" : "close"),
        h(
          "div",
          {},
          h("span.claim-verdict", {}, claim.stands ? "stands" : "does not stand"),
          claim.text,
          claim.problems.map((one) => h("div.claim-problem", {}, one)),
        ),
      ),
    ),
    flags.map(({ name, reason }) =>
      h("div.claim.falls", {}, icon("alert"), h("div", {}, h("span.claim-verdict", {}, name), reason)),
    ),
  ];
}

function unknown({ event }) {
  return h("section.card", {}, h("div.json", {}, tree(event, 1)));
}
