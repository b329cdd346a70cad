// Formats numbers and times for people.

/** Seconds: `840 ms`, `3.2 s`, `4 m 05 s`, `2 h 03 m`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.0005) return `${Math.max(0, seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} m`;
}

function two(number) {
  return String(number).padStart(2, "0");
}

/** Bytes: `512 B`, `3.1 kB`, `12 MB`. */
export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) [count, unit] = [count / 1000, unit + 1];
  return `${unit && count < 10 ? count.toFixed(1) : count.toFixed(0)} ${units[unit]}`;
}

/** Counts: `950`, `12.4k`, `3.1M`. */
export function count(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  if (number < 1e4) return Math.round(number).toLocaleString("en");
  if (number < 1e6) return `${(number / 1e3).toFixed(number < 1e5 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(1)}M`;
}

/** A count with its noun: `1 call`, `2 calls`. */
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** US dollars. */
export function dollars(amount) {
  if (amount === null || amount === undefined || !Number.isFinite(amount)) return "–";
  if (amount === 0) return "$0";
  return `$${amount.toFixed(amount < 0.01 ? 4 : amount < 1 ? 3 : 2)}`;
}

/** A value in a plot or tooltip. */
export function number(value) {
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** A time relative to now: `just now`, `5 min ago`, `3 h ago`. */
export function ago(time, now = Date.now() / 1000) {
  const past = now - time;
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  if (past < 86400 * 7) return `${Math.floor(past / 86400)} d ago`;
  return new Date(time * 1000).toISOString().slice(0, 10);
}

/** A date and time in full, in local time. */
export function moment(time) {
  return Number.isFinite(time) && time > 0 ? new Date(time * 1000).toLocaleString() : "–";
}

/** A time since the start of the run, `0:07.3`. */
export function since(seconds) {
  if (!Number.isFinite(seconds)) return "";
  const minutes = Math.floor(Math.max(0, seconds) / 60);
  return `${minutes}:${(Math.max(0, seconds) % 60).toFixed(1).padStart(4, "0")}`;
}
