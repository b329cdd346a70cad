// Dark or light: as the system has it, until somebody chooses.

import { fill, h, icon } from "./dom.js";

const KEY = "seer-theme";

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a shared file opened where storage is off
  }
}

/** Apply what was chosen before. */
export function startTheme() {
  const found = stored();
  if (found === "dark" || found === "light") document.documentElement.dataset.theme = found;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    dispatchEvent(new Event("seer-theme")),
  );
}

/** Whether the page is dark now. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Change to the other one; pictures that hold colours are told. */
export function switchTheme() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    return; // it holds for this page then
  } finally {
    dispatchEvent(new Event("seer-theme"));
  }
}

/** The button for it. */
export function themeButton() {
  const button = h("button.ghost", {
    title: "Dark or light (d)",
    "aria-label": "Dark or light",
    onclick: switchTheme,
  });
  const show = () => fill(button, icon(isDark() ? "sun" : "moon"));
  addEventListener("seer-theme", show);
  show();
  return button;
}

const probe = h("span", { hidden: true });

/** The colour that a style variable stands for now, in a form that a canvas takes. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
