// The last records of the step whose details are open, where the server shows values.

import { field, setShown, setText } from "./dom.js";
import { exact } from "./format.js";
import { ask } from "./server.js";

const kept = 20;
const pause_ms = 1000;
const pause = () => new Promise((resolve) => setTimeout(resolve, pause_ms));

export function makeRecords(job) {
  const isAllowed = "values" in document.body.dataset;
  let current = null;

  async function poll(mine) {
    let log = "", after = 0, lines = [];
    const path = `/${encodeURIComponent(job)}/tap/${encodeURIComponent(mine.step)}`;
    while (current === mine) {
      const answer = document.hidden ? null : await ask(`${path}?log=${log}&after=${after}`).catch((error) => ({ error: error.message }));
      if (current !== mine) return;
      if (answer?.error) setText("records-title", answer.error);
      else if (answer) {
        lines = [...(answer.log === log ? lines : []), ...answer.records].slice(-kept);
        ({ log, after } = answer);
        setText("records-title", `Last records; ${exact(answer.passed)} have passed`);
        setText("records-list", lines.join("\n"));
      }
      await pause();
    }
  }
  function open(step) {
    if (!isAllowed) return;
    current = { step };
    setText("records-title", "Last records");
    setText("records-list", "");
    setShown("records", true);
    poll(current);
  }
  function close() {
    current = null;
    setShown("records", false);
  }
  return { open, close };
}
