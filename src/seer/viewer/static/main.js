// The page's entry point: chooses the source of data, and handles the address and the keys.

import { EmbeddedSource, HttpSource } from "./data/source.js";
import { fill, h } from "./draw/dom.js";
import { startTheme, switchTheme } from "./draw/theme.js";
import { ComparePage } from "./pages/compare.js";
import { RunPage } from "./pages/run.js";
import { RunsPage } from "./pages/runs.js";
import { SweepPage } from "./pages/sweep.js";
import { showHelp } from "./draw/dialogs.js";
import { takeToken } from "./data/token.js";

const root = document.getElementById("app");
let page = null;

function show(next) {
  page?.close();
  page = next;
  next.show(root);
}

function route(source, about) {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const [, name, ...parts] = path.split("/");
  const ids = parts.map((part) => decodeURIComponent(part));
  if (name === "run" && ids.length === 1) show(new RunPage(source, ids[0], about));
  else if (name === "compare" && ids.length === 2) show(new ComparePage(source, ids));
  else if (name === "sweep" || (!name && about.sweep)) show(new SweepPage(source));
  else show(new RunsPage(source, new URLSearchParams(query ?? ""), about));
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("button, a, summary")) return;
  if (event.key === "?") showHelp();
  else if (event.key === "d") switchTheme();
  else if (!page?.key(event)) return;
  event.preventDefault();
}

async function begin() {
  startTheme();
  addEventListener("keydown", pressed);
  const record = document.getElementById("record");
  if (record) {
    const source = new EmbeddedSource(JSON.parse(record.textContent));
    show(new RunPage(source, source.id, await source.about()));
    return;
  }
  const token = await takeToken();
  const source = new HttpSource(token ?? "");
  try {
    const about = await source.about();
    // A new token in an open tab belongs to another server, so the page reloads.
    addEventListener("hashchange", () =>
      location.hash.startsWith("#token=") ? location.reload() : route(source, about),
    );
    route(source, about);
  } catch (error) {
    fill(
      root,
      h(
        "main.welcome",
        {},
        h("h1", {}, "Seer"),
        h(
          "p",
          {},
          error.status === 401
            ? "This page needs its token. Open the whole address that `seer view` printed, or start `seer view` again."
            : error.message,
        ),
      ),
    );
  }
}

begin();
