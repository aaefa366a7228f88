// The token, and everything that is asked of the server.

const goneFor_ms = 10000;
const storageKey = "malstrom-token";
const token = readToken();

function readToken() {
  const inAddress = new URLSearchParams(location.search).get("token");
  try {
    if (inAddress) sessionStorage.setItem(storageKey, inAddress);
    return inAddress || sessionStorage.getItem(storageKey) || "";
  } catch {
    return inAddress || ""; // storage may be forbidden
  }
}

const withToken = (address) => (token ? `${address}?token=${encodeURIComponent(token)}` : address);

export const homeAddress = () => withToken("/");
export const jobAddress = (job) => withToken(`/jobs/${encodeURIComponent(job)}`);
export const jobOfAddress = () => {
  const match = location.pathname.match(/^\/jobs\/([^/]+)\/?$/);
  return match && decodeURIComponent(match[1]);
};

/** A whole number that a number of JavaScript cannot hold stays text. */
const exactly = (key, value, { source } = {}) => (Number.isInteger(value) && !Number.isSafeInteger(value) ? source ?? value : value);

/** The JSON answer of the server; an `Error` with `status` otherwise (0: it does not answer). */
export async function ask(path, body) {
  const headers = { "X-Malstrom-Token": token };
  if (body) headers["Content-Type"] = "application/json";
  const request = { headers, method: body ? "POST" : "GET", body: body && JSON.stringify(body), cache: "no-store" };
  const response = await fetch(`/api/jobs${path}`, request).catch(() => fail("the server does not answer", 0));
  const answer = await response.text().then((text) => JSON.parse(text, exactly)).catch(() => ({}));
  if (!response.ok) fail(answer.error || `the server answered with status ${response.status}`, response.status);
  return answer;
}

function fail(text, status) {
  throw Object.assign(new Error(text), { status });
}

/**
 * Follows a job: `onView`, `onEvents(events, isFirst)`, `onRates(rows)`, `onLost`, and `onRefused(status)` for 401 and 404.
 * It goes on after the job is gone, for it may be started again; `onRefused` returns whether to give up.
 */
export function follow(job, { onView, onEvents, onRates, onLost, onRefused }) {
  const path = `/${encodeURIComponent(job)}`;
  let pause = 1000;
  const connect = () => {
    const stream = new EventSource(withToken(`/api/jobs${path}/stream`));
    let first = true;
    stream.addEventListener("open", () => { first = true; pause = 1000; });
    stream.addEventListener("view", (message) => onView(JSON.parse(message.data)));
    stream.addEventListener("rates", (message) => onRates(JSON.parse(message.data)));
    stream.addEventListener("events", (message) => {
      onEvents(JSON.parse(message.data), first);
      first = false;
    });
    stream.addEventListener("gone", () => {
      onLost();
      stream.close();
      setTimeout(connect, goneFor_ms);
    });
    stream.addEventListener("error", async () => {
      onLost();
      if (stream.readyState !== EventSource.CLOSED) return; // the browser connects again
      const status = await ask(path).then(() => 200, (error) => error.status);
      if ((status === 401 || status === 404) && onRefused(status)) return;
      setTimeout(connect, pause);
      pause = Math.min(2 * pause, 10000);
    });
  };
  connect();
}
