// Keeps a model up to date with its run. It reconnects after a lost connection or a hidden tab.

const PATIENCE = [500, 1000, 2000, 5000];
const BATCH = 60; // milliseconds between two updates of the page

/** Starts at once; `stop()` ends it. It calls `changed` after new lines have come in. */
export function follow(source, model, changed) {
  let [stopped, failures, scheduled] = [false, 0, 0];
  let abort = new AbortController();
  const tell = () => {
    scheduled ||= setTimeout(() => ((scheduled = 0), stopped || changed()), BATCH);
  };
  const take = (lines) => {
    failures = 0;
    model.lost = "";
    model.take(lines);
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
