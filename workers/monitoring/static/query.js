// A query for the state of the steps, where the server shows values.

import { field, make, setShown, setText } from "./dom.js";
import { plural } from "./format.js";
import { ask } from "./server.js";

const shownRows = 200;

export function makeQuery(job) {
  const isAllowed = "values" in document.body.dataset;
  const form = field("query-form"), button = form.querySelector("button");

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    const sql = encodeURIComponent(form.elements.sql.value);
    const { rows, rows_all, snapshot, error } = await ask(`/${encodeURIComponent(job)}/query?sql=${sql}`).catch((error) => ({ error: error.message }));
    button.disabled = false;
    setText("query-error", error || "");
    const shown = rows?.slice(0, shownRows) ?? [];
    setText("query-note", rows ? `${rows_all > shown.length ? `the first ${shown.length} of ` : ""}${plural(rows_all, "row")} as of snapshot ${snapshot}` : "");
    field("query-rows").replaceChildren(...(shown.length ? [tableOf(shown)] : []));
  });
  return (view) => setShown("query", isAllowed && view.can_command === true);
}

function tableOf(rows) {
  const names = Object.keys(rows[0]);
  const kind = (value) => (typeof value === "number" ? "number" : "");
  const text = (value) => (value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const head = names.map((name) => make("th", { scope: "col", class: kind(rows[0][name]), text: name }));
  const cells = (row) => names.map((name) => make("td", { class: kind(row[name]), "data-label": name, text: text(row[name]) }));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))));
}
