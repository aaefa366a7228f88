// Numbers with units. What is not known is a dash.

const dash = "–";
const space = "\u00a0";
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const scales = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

const unknown = (value) => value === null || value === undefined || !Number.isFinite(value);

/** 1,234,567 */
export function exact(value) {
  return unknown(value) ? dash : grouped.format(value);
}

/** 9,876 or 12.3 k or 1.2 M */
export function short(value, from = 1e4) {
  if (unknown(value)) return dash;
  if (Math.abs(value) < from) return Math.abs(value) < 10 && value % 1 ? value.toFixed(1) : grouped.format(value);
  const [scale, unit] = scales.find(([least]) => Math.abs(value) >= least * 0.9995);
  return digits(value / scale) + space + unit;
}

const digits = (value) => (Math.abs(value) >= 99.95 ? grouped.format(value) : value.toFixed(1));

/** 1.2 M rows/s */
export function rate(value, unit = "rows/s") {
  return unknown(value) ? dash : short(value) + space + unit;
}

/** 1.2 M/s */
export function perSecond(value) {
  return unknown(value) ? dash : `${short(value)}/s`;
}

/** 12.3 MB */
export function bytes(value) {
  if (unknown(value)) return dash;
  if (Math.abs(value) < 1000) return `${grouped.format(value)}${space}B`;
  const [scale, unit] = scales.find(([least]) => Math.abs(value) >= least * 0.9995) || [1, ""];
  return `${digits(value / scale)}${space}${unit}B`;
}

/** 12 ms, 3.4 s, 2 min 05 s, 1 h 03 min, 2 d 4 h */
export function duration(seconds) {
  if (unknown(seconds)) return dash;
  if (seconds < 0) return `−${duration(-seconds)}`;
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (seconds > 0 && seconds < 0.0995) return `${Math.max(1, Math.round(seconds * 1000))}${space}ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)}${space}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${space}min ${two(seconds % 60)}${space}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}${space}h ${two((seconds % 3600) / 60)}${space}min`;
  return `${grouped.format(Math.floor(seconds / 86400))}${space}d ${Math.floor((seconds % 86400) / 3600)}${space}h`;
}

/** The time since something, in whole seconds. */
export function age(seconds) {
  return unknown(seconds) ? dash : seconds < 99.5 ? `${Math.max(0, Math.round(seconds))}${space}s` : duration(seconds);
}

/** 42 % */
export function percent(share) {
  if (unknown(share)) return dash;
  return `${share > 0 && share < 0.1 ? (100 * share).toFixed(1) : Math.round(100 * share)}${space}%`;
}

/** 0.97 */
export function cores(value) {
  return unknown(value) ? dash : value.toFixed(2);
}

/** Wall-clock time here, with the date if it is not today. */
export function clock(at) {
  if (unknown(at)) return dash;
  const time = new Date(at * 1000);
  const text = time.toLocaleTimeString("en-GB");
  return time.toDateString() === new Date().toDateString() ? text : `${time.toLocaleDateString("sv-SE")} ${text}`;
}

/** Event time, in UTC. */
export function eventTime(at) {
  if (unknown(at) || Math.abs(at) > 8e12) return dash;
  return new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ");
}

export function plural(count, one, many = `${one}s`) {
  return `${exact(count)} ${count === 1 ? one : many}`;
}
