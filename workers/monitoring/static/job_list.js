// The start page: the jobs that run here, and those that have ended.

import { field, KeyedList, make, setAttribute, setShown, setText } from "./dom.js";
import { clock, duration, exact, rate } from "./format.js";
import { ask, jobAddress } from "./server.js";

const pause_ms = 2000;

export function showJobs(onUnauthorized) {
  const list = new KeyedList(field("job-cards"), makeCard);
  let severalSeen = false;

  async function poll() {
    if (!document.hidden) {
      try {
        show(await ask(""));
      } catch (error) {
        if (error.status === 401) return onUnauthorized();
        setText("jobs-summary", "the server no longer answers");
      }
    }
    setTimeout(poll, pause_ms);
  }

  function show({ jobs, version }) {
    if (jobs.length === 1 && !severalSeen) return location.replace(jobAddress(jobs[0].job));
    severalSeen ||= jobs.length > 1;
    const running = jobs.filter((job) => !job.has_ended).length;
    list.update(jobs, (job) => `${job.job} ${job.started_at}`);
    setText("jobs-summary", jobs.length ? `${running} running, ${jobs.length - running} ended` : "");
    setShown("jobs-empty", jobs.length === 0);
    setText("version", version ? `malstrom ${version}` : "malstrom");
  }
  poll();
}

function makeCard() {
  const name = make("b"), badge = make("span", { class: "badge" }), error = make("p", { class: "card-error" });
  const figures = [["read"], ["workers"], ["duration"], ["started"]].map(([label]) => {
    const value = make("dd");
    return { value, element: make("div", {}, make("dt", { text: label }), value) };
  });
  const link = make("a", {}, make("div", { class: "job-head" }, name, badge), make("dl", {}, ...figures.map(({ element }) => element)), error);
  const element = make("li", {}, link);
  return {
    element,
    update(job) {
      setAttribute(link, "href", jobAddress(job.job));
      setText(name, job.job);
      setText(badge, job.state);
      setAttribute(badge, "data-state", job.state);
      const texts = [rate(job.read_per_s), exact(job.workers), duration(job.duration_s), clock(job.started_at)];
      texts.forEach((text, index) => setText(figures[index].value, text));
      setText(error, job.error ? job.error.split("\n")[0] : "");
      setShown(error, Boolean(job.error));
    },
  };
}
