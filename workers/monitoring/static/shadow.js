// New code that is compared with that of a step: the counts, and the last differences where the server shows values.

import { field, setShown, setText } from "./dom.js";
import { exact, plural } from "./format.js";
import { ask } from "./server.js";

export function makeShadow(job) {
  const isAllowed = "values" in document.body.dataset;
  const buttons = field("shadow-buttons").querySelectorAll("button");
  let shown = null; // the step, and how many of its differences were asked for

  return (view, step) => {
    const shadow = view.shadows?.[step];
    setShown("shadow", Boolean(shadow));
    if (!shadow || shown?.step !== step) {
      shown = shadow ? { step, different: 0 } : null;
      setText("shadow-pairs", "");
    }
    if (!shadow) return;
    const { compared, different, failure } = shadow;
    setText("shadow-counts", `${exact(different)} of ${plural(compared, "output")} of the new code ${different === 1 ? "differs" : "differ"}`);
    setText("shadow-failure", failure && `The new code has stopped: ${failure}`);
    setShown("shadow-buttons", view.can_command === true && !failure);
    for (const button of buttons) button.dataset.step = step;
    if (!isAllowed || !view.can_command || different === shown.different) return;
    const mine = Object.assign(shown, { different });
    ask(`/${encodeURIComponent(job)}/shadow/${encodeURIComponent(step)}`).then(
      ({ pairs }) => shown === mine && setText("shadow-pairs", pairs.join("\n")),
      () => { mine.different = -1; }, // asked again with the next view
    );
  };
}
