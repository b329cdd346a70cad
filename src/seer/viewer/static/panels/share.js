// Shares a run as a file: choose what to remove, see a preview, save.

import { dialog, toast } from "../draw/dialogs.js";
import { fill, h } from "../draw/dom.js";
import { bytes } from "../text/format.js";
import { save } from "./about.js";

/** Opens the dialog. */
export function shareRun(model, source) {
  dialog("Share this run as one file", (close) => {
    const secrets = h("textarea", {
      rows: "3",
      placeholder: "one text per line; each is replaced everywhere",
      spellcheck: "false",
    });
    const fields = h("input", {
      type: "text",
      placeholder: "system_prompt, thinking, api_key",
      spellcheck: "false",
    });
    const paths = box("Shorten personal paths", true);
    const images = box("Keep pictures (they cannot be searched for secrets)", true);
    const arrays = box("Keep arrays of gate calls", true);
    const report = h("div.report", { "aria-live": "polite" }, "…");
    const asked = () => ({
      secrets: secrets.value
        .split("\n")
        .map((text) => text.trim())
        .filter(Boolean),
      fields: fields.value
        .split(",")
        .map((text) => text.trim())
        .filter(Boolean),
      paths: paths.input.checked,
      images: images.input.checked,
      arrays: arrays.input.checked,
    });
    let timer = 0;
    const preview = () => {
      clearTimeout(timer);
      timer = setTimeout(
        async () => fill(report, ...(await describe(source, model.id, asked()))),
        250,
      );
    };
    for (const input of [secrets, fields, paths.input, images.input, arrays.input])
      input.addEventListener("input", preview);
    preview();
    const finish = async (event) => {
      event.preventDefault();
      try {
        save(await source.share(model.id, asked()), `${model.id}.html`);
        close();
      } catch (error) {
        toast(error.message, "bad");
      }
    };
    return h(
      "form.form",
      { onsubmit: finish },
      h(
        "p.hint",
        {},
        "The file opens in any browser, without a network. Text that looks like a credential is always removed.",
      ),
      h("label", {}, "More secrets to remove", secrets),
      h("label", {}, "Fields to leave out, by name", fields),
      paths.label,
      images.label,
      arrays.label,
      report,
      h("div.actions", {}, h("button.primary", { type: "submit" }, "Save the file")),
    );
  });
}

function box(text, checked) {
  const input = h("input", { type: "checkbox" });
  input.checked = checked;
  return { input, label: h("label.check", {}, input, text) };
}

async function describe(source, id, asked) {
  try {
    const found = await source.sharePreview(id, asked);
    const parts = [
      ["secrets", "secrets"],
      ["paths", "paths"],
      ["fields", "fields"],
      ["images", "pictures left out"],
      ["arrays", "arrays left out"],
      ["large", "large values left out"],
    ]
      .filter(([name]) => found[name])
      .map(([name, label]) => `${found[name]} ${label}`);
    return [
      h(
        "strong",
        {},
        parts.length ? `Removes: ${parts.join(", ")}.` : "Found nothing to remove.",
      ),
      ` File size: ${bytes(found.bytes)}.`,
    ];
  } catch (error) {
    return [`No preview: ${error.message}`];
  }
}
