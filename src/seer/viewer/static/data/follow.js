// Keeps a model up to date with its run. It reconnects after a lost connection or a hidden tab.

const PATIENCE = [500, 1000, 2000, 5000];
const BATCH = 60; // milliseconds between two updates of the page
const GRADING = [1, 2, 4, 8, 15, 30, 60, 60, 60, 60]; // seconds between checks for a score

/** Starts at once; `stop()` ends it. It calls `changed` after new lines have come in. */
export function follow(source, model, changed) {
  let [stopped, failures, scheduled, seen] = [false, 0, 0, false];
  let abort = new AbortController();
  const tell = () => {
    scheduled ||= setTimeout(() => ((scheduled = 0), stopped || changed()), BATCH);
  };
  const take = (lines) => {
    failures = 0;
    model.lost = "";
    model.take(lines);
    seen ||= model.state === "live";
    tell();
  };
  const run = async () => {
    while (!stopped && model.state !== "over" && model.state !== "gone") {
      if (document.hidden) await visible();
      abort = new AbortController();
      try {
        await source.stream(model.id, model.offsets, take, abort.signal);
      } catch (error) {
        if (stopped) return;
        if (error.status === 404 || error.status === 401)
          [model.state, model.goneBecause] = ["gone", error.message];
        else if (error.name !== "AbortError") model.lost = `${error.message}`;
        tell();
      }
      if (model.state === "live" || model.state === "loading")
        await pause(PATIENCE[Math.min(failures++, PATIENCE.length - 1)]);
    }
    tell();
    if (seen) await grade();
  };
  // A run gets its score after it ends, so a page that saw the end checks for a while.
  const grade = async () => {
    for (const seconds of GRADING) {
      if (model.state !== "over" || Number.isFinite(model.meta.score)) return;
      await pause(1000 * seconds);
      if (document.hidden) await visible();
      if (stopped) return;
      // If the viewer is gone, only the score is missing, so the page shows no error.
      await source.stream(model.id, model.offsets, take, abort.signal).catch(() => {});
    }
  };
  // A hidden tab holds no connection, because browsers allow few connections to one server.
  const hide = () => document.hidden && model.state === "live" && abort.abort();
  document.addEventListener("visibilitychange", hide);
  const clock = setInterval(() => model.state === "live" && tell(), 1000);
  run();
  return {
    stop() {
      stopped = true;
      abort.abort();
      clearInterval(clock);
      document.removeEventListener("visibilitychange", hide);
    },
  };
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function visible() {
  return new Promise((resolve) =>
    document.addEventListener("visibilitychange", resolve, { once: true }),
  );
}
