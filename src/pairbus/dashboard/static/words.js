// Numbers, sizes, times and states in words.

const NUMBER = new Intl.NumberFormat("en");

export const number = (value) => (value === null || value === undefined ? "–" : NUMBER.format(value));
export const many = (count, word, plural = `${word}s`) => `${number(count)} ${count === 1 ? word : plural}`;

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1024 && at < units.length - 1) { size /= 1024; at += 1; }
  return `${at && size < 10 ? size.toFixed(1) : Math.round(size)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit, smaller, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    const rest = Math.floor((whole % size) / smaller);
    if (whole >= size) return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${small}` : ""}`;
  }
  return `${whole} s`;
}

export function rate(perSecond) {
  if (perSecond === undefined || perSecond === null) return "–";
  return `${perSecond >= 10 || perSecond === 0 ? Math.round(perSecond) : perSecond.toFixed(1)} /s`;
}

const clock = (options) => new Intl.DateTimeFormat("en-GB", options);
const TIME = clock({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = clock({ day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function moment(value) {
  if (!value) return "–";
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return String(value);
  const today = new Date().toDateString() === date.toDateString();
  return (today ? TIME : DAY).format(date);
}

export const STATES = {
  HEALTHY: ["healthy", "healthy"],
  SUSPECT: ["suspect", "suspect"],
  FAILED_OVER: ["failed", "failed over"],
  HELD_OVER: ["failed", "failed over by hand"],
};

export const isBacklog = (path) => /\/x-servicebus-transfer\/\d+$/i.test(path);
export const shortBody = (text) => (text === null || text === undefined ? "(no body)" : text);

// JSON with one member a line; null when the text is no JSON object or list. Numbers and texts stay as they were
// written: a parsed and printed number could differ.
export function indented(text) {
  try {
    if (typeof JSON.parse(text) !== "object" || !/^\s*[[{]/.test(text)) return null;
  } catch { return null; }
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const parts = text.match(/"(?:[^"\\]|\\.)*"|[[\]{}:,]|[^\s"[\]{}:,]+/g);
  return parts.map((part, at) => {
    const isEmpty = "[{".includes(part) && "]}".includes(parts[at + 1]);
    if (isEmpty) return part;
    if ("[{".includes(part)) { depth += 1; return part + line(); }
    if ("]}".includes(part)) { if ("[{".includes(parts[at - 1])) return part; depth -= 1; return line() + part; }
    return part === "," ? part + line() : part === ":" ? ": " : part;
  }).join("");
}

export function jobText(job) {
  const isUnderWay = job.state === "running" && job.total !== undefined;
  return [isUnderWay ? `${number(job.done ?? 0)} of ${many(job.total, "message")}` : `${job.state}: ${many(job.done ?? 0, "message")}`,
    job.left ? `${number(job.left)} left` : "",
    job.uncompleted ? `${number(job.uncompleted)} of them could not be completed: ${job.verb === "move" ? "in both places" : "still there"}` : "",
    ...(job.notes ?? []),
    job.error ?? "",
    job.state !== "running" && job.resume ? `accepted up to line ${number(job.resume.lines)}: import the same file again to go on there` : "",
  ].filter(Boolean).join("; ");
}
