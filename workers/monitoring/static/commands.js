// The buttons and dialogs that change a job, and the short messages that answer.

import { field, make, setText } from "./dom.js";
import { ask } from "./server.js";

const shownFor_ms = { good: 7000, bad: 15000 };

export function toast(text, tone = "good") {
  const close = make("button", { type: "button", "aria-label": "Close this message", text: "✕" });
  const element = make("div", { class: `toast ${tone}`, role: tone === "bad" ? "alert" : "status" }, make("span", { text }), close);
  close.addEventListener("click", () => element.remove());
  field("toasts").append(element);
  setTimeout(() => element.remove(), shownFor_ms[tone]);
}

const bodies = {
  rescale: (form) => ({ workers: Number(form.elements.workers.value) }),
  rebalance: () => ({}),
  snapshot: () => ({}),
  promote: (form) => ({ step: form.elements.step.value }),
  drop: (form) => ({ step: form.elements.step.value }),
  stop: (form) => ({ drain: { true: true, false: false }[form.elements.drain.value] ?? null }),
};

/** `latestView()` is the last view of the job; `onUnauthorized` is called if the token is refused. */
export function setUpCommands(job, latestView, onUnauthorized) {
  for (const button of document.querySelectorAll("[data-opens]")) {
    const dialog = document.getElementById(button.dataset.opens);
    button.addEventListener("click", () => {
      dialog.querySelector("form").reset();
      prepare(dialog, latestView(), button);
      dialog.showModal();
      const input = dialog.querySelector("input[type=number]");
      input?.focus();
      input?.select();
    });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.querySelector("[data-closes]").addEventListener("click", () => dialog.close());
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.close();
      send(event.target, button);
    });
  }

  async function send(form, button) {
    button.disabled = true;
    try {
      const answer = await ask(`/${encodeURIComponent(job)}/${form.dataset.command}`, bodies[form.dataset.command](form));
      toast(answer.text || "Done.");
    } catch (error) {
      if (error.status === 401) onUnauthorized();
      else toast(error.message, "bad");
    }
    button.disabled = false;
  }
}

function prepare(dialog, view, button) {
  if (button.dataset.step) dialog.querySelector('[name="step"]').value = button.dataset.step;
  if (dialog.id === "rescale-dialog") dialog.querySelector("input").value = view.workers_wanted || view.workers.length || 1;
  if (dialog.id === "snapshot-dialog") {
    const hint = "The job continues while it is made, and can be resumed from it.";
    setText("snapshot-hint", view.snapshots ? hint : `${hint} This job seems to have no folder for snapshots: it may refuse.`);
  }
}
