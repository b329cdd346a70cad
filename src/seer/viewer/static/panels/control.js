// Controls of a live run: stop it, send a message to the agent, change a limit.

import { dialog, toast } from "../draw/dialogs.js";
import { h, icon } from "../draw/dom.js";

async function ask(source, id, request, done) {
  try {
    await source.control(id, request);
    toast(done);
    return true;
  } catch (error) {
    toast(error.message, "bad");
    return false;
  }
}

/** The button that ends a run, in one of two ways. */
export function stopButton(model, source) {
  return h(
    "button.danger",
    {
      onclick: () =>
        dialog("Stop this run?", (close) => {
          const choose = (action, done) => async () =>
            (await ask(source, model.id, { action }, done)) && close();
          return h(
            "div.form",
            {},
            h(
              "p.hint",
              {},
              "Let it conclude: the tools close, and the agent gets one last turn to report. Stop at once: the run ends now.",
            ),
            h(
              "div.actions",
              {},
              h(
                "button",
                { onclick: choose("conclude", "The agent was asked to conclude.") },
                "Let it conclude",
              ),
              h(
                "button.danger",
                { onclick: choose("stop", "The run is being stopped.") },
                "Stop at once",
              ),
            ),
          );
        }),
    },
    icon("stop"),
    "Stop",
  );
}

/** Messages, from this page or another sender, that the agent has not received yet. */
export function pendingMessages(model) {
  return model.waiting.map((text) =>
    h(
      "div.pending",
      {},
      h("span.pending-state", {}, model.state === "live" ? "waiting" : "not delivered"),
      text,
    ),
  );
}

/** The field for messages to the agent. */
export function messageBox(model, source) {
  const input = h("textarea", {
    rows: "1",
    placeholder: "message the agent (delivered after its current reply)",
    "aria-label": "Message to the agent",
  });
  const send = async (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text) return;
    if (await ask(source, model.id, { action: "message", text }, "Sent.")) input.value = "";
  };
  input.addEventListener(
    "keydown",
    (event) => event.key === "Enter" && !event.shiftKey && send(event),
  );
  return h(
    "form.message",
    { onsubmit: send },
    input,
    h("button.primary", { type: "submit", "aria-label": "Send" }, icon("send")),
  );
}

/** A function that approves or rejects a tool call. */
export function approval(model, source) {
  return (call, approved, text) =>
    ask(
      source,
      model.id,
      { action: "approve", call, approved, text },
      approved ? "Approved: the call runs." : "Denied: the call does not run.",
    );
}

/** A function that asks the user for a new value of a limit. */
export function changeLimit(model, source) {
  return (name, label, allowed) =>
    dialog(`Limit on ${label.toLowerCase()}`, (close) => {
      const input = h("input", {
        type: "number",
        min: "0",
        step: "any",
        value: Number.isFinite(allowed) ? String(allowed) : "",
      });
      const change = async (event) => {
        event.preventDefault();
        const value = input.value === "" ? null : Number(input.value);
        if (
          await ask(
            source,
            model.id,
            { action: "limits", limits: { [name]: value } },
            "The limit was changed.",
          )
        )
          close();
      };
      return h(
        "form.form",
        { onsubmit: change },
        h("label", {}, `${label}; empty for no limit`, input),
        h("div.actions", {}, h("button.primary", { type: "submit" }, "Change it")),
      );
    });
}
