// The dark or light theme: the system's, unless the user chooses one.

import { fill, h, icon } from "./dom.js";

const KEY = "seer-theme";

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a shared file in a browser that forbids storage
  }
}

/** Applies the theme that the user chose before. */
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

/** Switches to the other theme, and notifies the pictures, which have colours of their own. */
export function switchTheme() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    return; // without storage, the choice holds for this page only
  } finally {
    dispatchEvent(new Event("seer-theme"));
  }
}

/** The button that switches the theme. */
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

/** The current value of a colour variable, in a form that a canvas accepts. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
