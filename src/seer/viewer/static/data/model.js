// The page's model of a run: entries and gate calls, assembled from the lines of its record.

import { textOf, unpack } from "./record.js";

const WHOLE = new Set(["stop", "tool_calls"]); // reasons that the transcript leaves out

/** One run. It grows with the lines that are passed to `take`. */
export class RunModel {
  constructor(id) {
    this.id = id;
    this.meta = {};
    this.items = [];
    this.calls = [];
    this.usage = [];
    this.offsets = { events: 0, calls: 0 };
    this.problems = [];
    this.waiting = []; // messages that the agent has not received yet
    this.turns = new Map();
    this.state = "loading"; // later: live, over or gone
    this.#tools = new Map();
    this.#early = new Map();
  }

  #tools;
  #early; // gate calls by the id of a tool call that has not been read yet

  /** Takes lines of the stream. */
  take(lines) {
    for (const line of lines) {
      if (line.kind === "run") this.meta = line.body ?? {};
      else if (line.kind === "events") this.#event(line);
      else if (line.kind === "calls") this.#call(line);
      else if (line.kind === "broken") this.problems.push(String(line.message));
      else if (line.kind === "gone")
        [this.state, this.goneBecause] = ["gone", String(line.message)];
      else if (line.kind === "end") this.state = "over";
    }
    if (this.state === "loading" && this.meta.status === "running") this.state = "live";
  }

  /** When the run began, as Unix time. */
  get start() {
    return this.items[0]?.time ?? this.meta.created ?? 0;
  }

  /** The time of the last known line. */
  get end() {
    const last = this.items[this.items.length - 1];
    const call = this.calls[this.calls.length - 1];
    return Math.max(
      this.meta.ended ?? 0,
      last?.endTime ?? last?.time ?? 0,
      call?.time ?? 0,
      this.start + 0.001,
    );
  }

  get title() {
    return textOf(this.meta.title) || this.id;
  }

  #event({ at, next, body }) {
    this.offsets.events = next;
    const event = unpack(body) ?? {};
    const time = Number(event.time) || 0;
    const item = {
      key: `e${at}`,
      at,
      type: String(event.type),
      event,
      time,
      turn: Number(event.turn) || 0,
      version: 0,
    };
    if (item.type === "message_queued") return this.waiting.push(textOf(event.text));
    if (item.type === "user_message" || item.type === "message_not_delivered")
      this.#settled(textOf(event.text));
    if (item.type === "usage") return this.#usage(event, time);
    if (item.type === "waiting") return;
    if (item.type === "answer_finished" && WHOLE.has(event.reason)) return;
    if (item.type === "tool_result") return this.#result(item);
    if (item.type === "approval_asked") return this.#decided(event, { asked: true });
    if (item.type === "approval_given")
      return this.#decided(event, { asked: false, decided: event });
    if (item.type === "tool_call") {
      Object.assign(item, { calls: [], result: null, id: String(event.id) });
      this.#tools.set(item.id, item);
      for (const call of this.#early.get(item.id) ?? []) this.#link(item, call);
      this.#early.delete(item.id);
    }
    this.#turn(item);
    this.items.push(item);
  }

  #settled(text) {
    const place = this.waiting.indexOf(text);
    if (place >= 0) this.waiting.splice(place, 1);
  }

  #decided(event, state) {
    const call = this.#tools.get(String(event.id));
    if (!call) return;
    Object.assign(call, state);
    call.version++;
  }

  #turnOf(number) {
    if (!this.turns.has(number)) this.turns.set(number, { first: null, tokens: 0, cost: null });
    return this.turns.get(number);
  }

  #turn(item) {
    const turn = this.#turnOf(item.turn);
    turn.first ??= item;
    item.opensTurn = turn.first === item && item.turn > 0;
  }

  #usage(event, time) {
    const turn = this.#turnOf(Number(event.turn) || 0);
    const tokens = (Number(event.input_tokens) || 0) + (Number(event.output_tokens) || 0);
    const cost = Number.isFinite(event.total_cost_usd) ? event.total_cost_usd : null;
    this.usage.push({
      time,
      tokens: Number(event.total_tokens) || 0,
      cost,
      turn: Number(event.turn) || 0,
      input: Number(event.input_tokens) || 0,
      output: Number(event.output_tokens) || 0,
    });
    [turn.tokens, turn.cost] = [turn.tokens + tokens, event.cost_usd ?? turn.cost];
    if (turn.first) turn.first.version++;
  }

  #result(item) {
    const call = this.#tools.get(String(item.event.id));
    if (!call || call.result) {
      this.#turn(item);
      this.items.push(item);
      return;
    }
    call.result = item.event;
    call.resultAt = item.at;
    call.endTime = item.time;
    call.version++;
  }

  #call({ at, next, body }) {
    this.offsets.calls = next;
    const call = unpack(body) ?? {};
    const time = Number(call.time) || 0;
    const [queue, run] = [Number(call.queue) || 0, Number(call.run) || 0];
    const found = {
      ...call,
      key: `c${at}`,
      at,
      index: this.calls.length,
      version: 0,
      time,
      queue,
      run,
      started: time - run - queue,
      gpu: call.gpu > 0 ? call.gpu : null,
      ok: call.outcome === "ok",
    };
    this.calls.push(found);
    // An empty id means that no tool call of the agent made the call.
    if (call.tool_call) this.#belongs(String(call.tool_call), found);
  }

  #belongs(id, call) {
    const item = this.#tools.get(id);
    if (item) return this.#link(item, call);
    this.#early.set(id, [...(this.#early.get(id) ?? []), call]);
  }

  #link(item, call) {
    call.item = item;
    item.calls.push(call);
    item.version++;
  }
}

/** The first line of a text that is not empty. */
export function firstLine(text, longest = 120) {
  const line =
    textOf(text)
      .split("\n")
      .map((part) => part.trim())
      .find((part) => part) ?? "";
  return line.length > longest ? `${line.slice(0, longest - 1)}…` : line;
}

/** A summary of a tool call in one line. */
export function toolSummary(item) {
  const given = item.event.arguments;
  if (given === null || typeof given !== "object") return "";
  const code = given.code ?? given.command ?? given.source;
  if (typeof code === "string")
    return firstLine(code.replace(/^\s*(#[^\n]*|import [^\n]*|from [^\n]*)\n/gm, "") || code);
  return firstLine(
    Object.entries(given)
      .map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`)
      .join("  "),
  );
}
