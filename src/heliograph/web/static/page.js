// Shows what the API answers. Every value is inserted as text, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const LIVE_MS = 2000;
const HISTORY_MS = 60000;
const SERIES = { "10m": { length: 300, seconds: 600 }, "24h": { length: 1440, seconds: 86400 } };
const choice = { range: "10m", hours: null };
const loaded = { range: null, columns: null };
let lastSeen = null;
let serverTime = 0;

const byId = (id) => document.getElementById(id);
const number = (value) => (value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value !== 0 && Math.abs(value) < 10 ? 2 : 0 }));
const milliseconds = (value) => (value === null ? "–" : value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`);
const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

function duration(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

function bytes(value) {
  if (value === null) return "–";
  for (const [size, unit] of [[2 ** 40, "TB"], [2 ** 30, "GB"], [2 ** 20, "MB"]]) {
    if (value >= size) return `${number(value / size)} ${unit}`;
  }
  return `${number(value / 1024)} KB`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

// Text with one command in it, as "Try: `command`".
function hint(text) {
  const made = element("p", undefined, "none");
  text.split("`").forEach((part, index) => made.append(index % 2 ? element("code", part) : part));
  return made;
}

function facts(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

function rows(table, entries, nothing) {
  const made = entries.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell))));
    [...row.cells].forEach((cell, index) => { cell.dataset.label = table.tHead.rows[0].cells[index].textContent; });
    return row;
  });
  if (made.length === 0) {
    const cell = element("td", undefined, "none");
    cell.colSpan = table.tHead.rows[0].cells.length;
    cell.append(hint(nothing));
    const row = element("tr");
    row.append(cell);
    made.push(row);
  }
  table.tBodies[0].replaceChildren(...made);
}

function bar(name, value, most, text, high = null) {
  const line = element("div");
  const meter = element("meter");
  meter.max = most;
  if (high !== null) [meter.high, meter.optimum] = [high, 0]; // red above
  meter.value = value;
  meter.setAttribute("aria-label", `${name}: ${text}`);
  line.append(element("span", name), meter, element("span", text));
  return line;
}

function bars(box, counts, nothing) {
  const entries = Object.entries(counts);
  const most = Math.max(1, ...entries.map(([, count]) => count));
  box.replaceChildren(...entries.map(([name, count]) => bar(name, count, most, number(count))));
  if (entries.length === 0) box.append(hint(nothing));
}

const STATES = {
  ok: "Everything works", warning: "Working, with warnings", critical: "Not working as it should", unknown: "Waiting for the first values",
};

function showHealth(now) {
  setText("state", STATES[now.state]);
  byId("health").className = now.state;
  const wanted = JSON.stringify(now.problems);
  const list = byId("problems");
  if (list.dataset.shown !== wanted) {
    list.dataset.shown = wanted;
    list.replaceChildren(...now.problems.map((problem) => {
      const item = element("li", undefined, problem.severity);
      item.append(element("strong", problem.severity === "critical" ? "Critical:" : "Warning:"), problem.text, element("span", problem.action));
      return item;
    }));
  }
  const count = now.state === "ok" || now.state === "unknown" ? "" : `(${now.problems.length}) `;
  document.title = `${count}Heliograph ${now.installation.name}`;
}

// What was looked at, with the worst problem of its kind: the keys of problems begin with their kind.
function showChecks(now) {
  const disk = Math.min(...now.disks.map((item) => item.free));
  const running = now.processes.filter((process) => process.state === "running").length;
  const working = now.providers.filter((provider) => provider.state === "ok").length;
  const pending = Object.values(now.pending).reduce((sum, count) => sum + count, 0);
  const isKnown = (name) => !now.routers[name].is_stale;
  const answers = (name) => (now.routers[name].as_of === null ? "no values yet" : "answers");
  // The last is whether it is known at all: what a silent router said is not.
  const checks = [
    ["router:smp", "Messaging router", answers("smp"), isKnown("smp")],
    ["router:ntf", "Notification router", answers("ntf"), isKnown("ntf")],
    ["provider", "Push providers", working ? `${working} working` : "idle", isKnown("ntf")],
    ["pending", "Pending pushes", pending ? number(pending) : "none", isKnown("ntf")],
    ["process", "Processes", `${running} of ${now.processes.length} run`, now.processes.length > 0],
    ["disk", "Disk", `${bytes(disk)} free`, now.disks.length > 0],
    ["certificate", "Certificates", "valid", isKnown("ntf") && isKnown("smp")],
    ["pipeline", "Data pipeline", now.pipeline.state, !["off", "unknown", "empty"].includes(now.pipeline.state)],
  ];
  byId("checks").replaceChildren(...checks.map(([kind, name, value, known]) => {
    const found = now.problems.filter((problem) => problem.key.startsWith(kind));
    const item = element("li", undefined, found.length ? found[0].severity : known ? "ok" : "unknown");
    const count = `${found.length} ${found.length > 1 ? "problems" : "problem"}`;
    item.append(element("b", name), element("span", found.length ? count : known || kind === "pipeline" ? value : "not known"));
    return item;
  }));
}

function showStaleness(now) {
  for (const box of document.querySelectorAll("[data-router]")) {
    const router = now.routers[box.dataset.router];
    box.classList.toggle("stale", router.is_stale);
    if (router.is_stale) box.title = router.as_of === null ? "no values yet" : `as of ${clock(router.as_of)}`;
    else box.removeAttribute("title");
  }
}

function showTiles(now) {
  const pending = Object.values(now.pending).reduce((sum, count) => sum + count, 0);
  setText("k-pushes", number(now.pushes.per_second));
  setText("k-notifications", number(now.notifications.per_second));
  setText("k-p50", milliseconds(now.latency_ms.p50));
  setText("k-p99", milliseconds(now.latency_ms.p99));
  setText("k-pending", number(pending));
  setText("k-oldest", pending ? `oldest ${duration(now.oldest_pending_seconds)}` : "none is late");
  setText("k-messages", number(now.messaging.sent.per_second));
}

const CLASSES = { ok: "good", running: "good", idle: "none", starting: "warn", failing: "warn", waiting: "bad", down: "bad", stopped: "bad" };
const stateCell = (state) => element("td", state, CLASSES[state]);

function showRouters(now) {
  // Tokens of the null provider only test routers.
  const providers = now.providers.filter((provider) => provider.name !== "apns_null" || provider.accepted);
  rows(byId("providers"), providers.map((provider) => [
    provider.name, stateCell(provider.state), number(provider.accepted), number(provider.failed), number(provider.in_flight),
  ]), "No push provider is configured: set `[push.apns]`, `[push.fcm]` or `[push.webpush]` in ntf/config.toml.");
  rows(byId("failures"), now.failures.map((failure) => [failure.reason, number(failure.recent), number(failure.total)]), "No push has failed.");
  facts(byId("ntf-facts"), [
    ["clients connected", number(now.ntf_clients)],
    ["pushes pending", number(Object.values(now.pending).reduce((sum, count) => sum + count, 0))],
  ]);
  facts(byId("ntf-totals"), [
    ["notifications received", number(now.notifications.total)],
    ["pushes accepted", number(now.pushes.total)],
    ["attempts that failed", number(now.pushes.failed)],
    ["retries", number(now.pushes.retried)],
    ["pushes expired", number(now.pushes.expired)],
  ]);
  byId("actions").hidden = !Object.values(now.actions).some((count) => count > 0);
  facts(byId("action-facts"), [
    ["applied", number(now.actions.applied)],
    ["waiting", number(now.actions.waiting)],
    ["refused", number(now.actions.refused)],
    ["in force", number(Object.values(now.restrictions).reduce((sum, count) => sum + count, 0))],
  ]);
  bars(byId("tokens"), now.tokens, "No phone has registered yet: see Pair a phone, below. `heliograph status` prints the commands for a phone in a terminal.");
  bars(byId("subscriptions"), now.subscriptions, "No queue is subscribed yet: a phone subscribes when it has a contact.");
  rows(byId("servers"), now.smp_servers.map((server) => [server.name, number(server.active), number(server.pending)]), "No messaging router is subscribed.");
  const smp = now.messaging;
  facts(byId("smp-facts"), [
    ["clients connected", number(smp.clients)],
    ["queues", number(smp.queues)],
    ["queues with notifications", number(smp.notifiers)],
    ["messages stored", number(smp.stored_messages)],
    ["messages sent per second", number(smp.sent.per_second)],
    ["messages received per second", number(smp.received.per_second)],
    ["notifications pending", number(smp.notifications_pending)],
  ]);
  facts(byId("smp-totals"), [
    ["messages sent", number(smp.sent.total)],
    ["messages received", number(smp.received.total)],
    ["notifications sent", number(smp.notifications_sent.total)],
  ]);
}

const VERDICTS = {
  off: "Off: `[pipeline] enabled = true` in config.toml turns it on.", unknown: "Not known yet.",
  empty: "Nothing was read from the journal yet.", unreadable: "Its tables cannot be read: run `heliograph doctor`.",
  complete: "Complete: every notification is accounted for", nothing: "No notification was read yet", unaccounted: "Some notifications are unaccounted for.",
  gaps: "Complete but for events that are known to be missing: run `heliograph pipeline status`.",
  lagging: "Not known: a router should write its journal and does not. Run `heliograph pipeline status`.",
};

function showPipeline(pipeline, at) {
  const verdict = byId("verdict");
  const isNothing = pipeline.state === "complete" && Object.keys(pipeline.outcomes).length === 0;
  const until = pipeline.state === "complete" ? `, up to ${clock(at - pipeline.lag_seconds)}.` : "";
  const said = `${VERDICTS[isNothing ? "nothing" : pipeline.state]}${until}`;
  if (verdict.dataset.said !== said) {
    verdict.dataset.said = said;
    verdict.replaceChildren(...hint(said).childNodes);
    verdict.className = `verdict ${{ complete: isNothing ? "none" : "good", unaccounted: "warn", gaps: "warn", lagging: "warn", unreadable: "bad" }[pipeline.state] || "none"}`;
  }
  const isOff = pipeline.state === "off";
  facts(byId("pipeline-facts"), isOff ? [] : [
    ["lag", pipeline.lag_seconds === null ? "–" : duration(pipeline.lag_seconds)],
    ["events read", number(pipeline.events)],
    ["events in quarantine", number(pipeline.quarantined)],
    ["notifications unaccounted for", number(pipeline.unaccounted)],
  ]);
  const percent = (value, digits) => (value === null ? "–" : `${value.toFixed(digits)} %`);
  rows(byId("objectives"), pipeline.objectives.map((item) => [
    item.objective, item.provider,
    element("td", item.state, item.alerts.length || item.state === "missed" ? "bad" : item.state === "met" ? "good" : "none"),
    percent(item.percent, 2), percent(item.budget_left === null ? null : 100 * item.budget_left, 0),
  ]), isOff ? "Objectives need the data pipeline." : "No objective was measured yet.");
  bars(byId("outcomes"), pipeline.outcomes, isOff ? "Outcomes need the data pipeline." : "No notification was accounted for yet.");
}

function showMachine(now) {
  const machine = now.machine;
  const made = [];
  if (machine.load !== null) made.push(bar("load, last minute", Math.min(machine.load, machine.cores), machine.cores, `${number(machine.load)} on ${number(machine.cores)} cores`, 0.99 * machine.cores));
  if (machine.memory_total) made.push(bar("memory", machine.memory_total - machine.memory_available, machine.memory_total, `${bytes(machine.memory_available)} of ${bytes(machine.memory_total)} free`, 0.95 * machine.memory_total));
  made.push(...now.disks.map((disk) => bar(`disk of ${disk.places.join(", ")}`, disk.total - disk.free, disk.total, `${bytes(disk.free)} of ${bytes(disk.total)} free`, 0.95 * disk.total)));
  byId("machine").replaceChildren(...made);
  const up = machine.uptime_seconds === null ? "" : `The machine is up for ${duration(machine.uptime_seconds)}, `;
  setText("uptimes", `${up}this page for ${duration(now.at - now.page_started_at)}.`.replace(/^t/, "T"));
  rows(byId("processes"), now.processes.map((process) => [
    process.name, stateCell(process.state), duration(now.at - process.since), number(process.restarts),
    process.cpu_percent === null ? "–" : `${number(process.cpu_percent)} %`, bytes(process.memory), number(process.open_files),
  ]), "Not known: this page was not started by `heliograph up`.");
}

function showLive(now) {
  serverTime = now.at;
  setText("connection", `as of ${clock(now.at)}`);
  setText("version", now.version);
  setText("installation", now.installation.name);
  byId("installation").title = `${now.installation.directory} on ${now.installation.machine}`;
  showHealth(now);
  showChecks(now);
  showStaleness(now);
  showTiles(now);
  showRouters(now);
  showPipeline(now.pipeline, now.at);
  showMachine(now);
  byId("test-token-field").hidden = byId("test-token").hidden = !now.actions_ask_token;
}

// Charts.

const LINES = {
  throughput: [{ label: "failed", column: "failed", colour: "--c3" }, { label: "notifications", column: "notifications", colour: "--c2", dash: [6, 4] }, { label: "accepted", column: "accepted", colour: "--c1", fill: true }],
  latency: [{ label: "p50", column: "p50", colour: "--c1" }, { label: "p90", column: "p90", colour: "--c2" }, { label: "p99", column: "p99", colour: "--c3" }],
  hourly: [{ label: "not accepted", column: "rejected", colour: "--c3" }, { label: "accepted", column: "accepted", colour: "--c1", fill: true }],
  hourlyLatency: [{ label: "p50", column: "p50_ms", colour: "--c1" }, { label: "p99", column: "p99_ms", colour: "--c3" }],
};
const NO_PUSHES = "No push in this time.";
const charts = {
  throughput: new Chart(byId("chart-throughput"), { lines: LINES.throughput, empty: "No values yet." }),
  latency: new Chart(byId("chart-latency"), { lines: LINES.latency, unit: " ms", log: true, empty: NO_PUSHES }),
  pending: new Chart(byId("chart-pending"), { lines: [{ label: "pending", column: "pending", colour: "--c1", fill: true }], whole: true, empty: "No values yet." }),
  messages: new Chart(byId("chart-messages"), { lines: [{ label: "sent", column: "messages", colour: "--c1", fill: true }, { label: "received", column: "messages_received", colour: "--c2", dash: [6, 4] }], empty: "No values yet." }),
};

function showSeries(columns, seconds) {
  const shown = [serverTime - seconds, serverTime];
  setText("range-note", "Drag to zoom, double-click to reset.");
  setText("c-throughput", "Pushes and notifications per second");
  charts.throughput.show(columns, shown, LINES.throughput);
  charts.latency.show(columns, shown, LINES.latency);
  charts.pending.show(columns, shown);
  charts.messages.show(columns, shown);
}

// An hour without a notification is a gap, not a line across it.
function showHistory(history) {
  const hour = 3600;
  const end = Math.floor(Date.now() / 1000 / hour) * hour;
  const points = new Map(history.points.map((point) => [Math.floor(point.at / hour) * hour, point]));
  const at = Array.from({ length: history.hours }, (_, index) => end - (history.hours - 1 - index) * hour);
  const columns = { at };
  for (const column of ["accepted", "rejected", "p50_ms", "p99_ms"]) columns[column] = at.map((time) => points.get(time)?.[column] ?? null);
  const note = history.points.length ? "By hour, from the data pipeline." : "The data pipeline has no notifications of this time.";
  setText("range-note", `${note} Drag to zoom, double-click to reset.`);
  setText("c-throughput", "Notifications per hour");
  const shown = [at[0], end + hour];
  charts.throughput.show(columns, shown, LINES.hourly);
  charts.latency.show(columns, shown, LINES.hourlyLatency);
}

async function refreshSeries() {
  if (choice.range === null) return;
  const range = choice.range;
  const kept = loaded.range === range ? loaded.columns : null;
  const since = kept && kept.at.length ? kept.at[kept.at.length - 1] : 0;
  const added = await ask(`api/series?range=${range}&since=${since}`);
  if (choice.range !== range) return;
  const columns = {};
  for (const [name, values] of Object.entries(added)) {
    if (Array.isArray(values)) columns[name] = [...(kept ? kept[name] : []), ...values].slice(-SERIES[range].length);
  }
  loaded.range = range;
  loaded.columns = columns;
  showSeries(columns, SERIES[range].seconds);
}

// Search.

function timeline(events) {
  const [first, last] = [events[0].at, events[events.length - 1].at];
  const picture = shape("svg", { class: "timeline", viewBox: "0 0 1000 56", preserveAspectRatio: "xMidYMid meet", role: "img", "aria-label": `${events.length} events in ${number(last - first)} seconds` });
  picture.append(shape("line", { x1: 16, x2: 984, y1: 28, y2: 28 }));
  let previous = -Infinity;
  events.forEach((event, index) => {
    const place = 16 + 968 * (last > first ? (event.at - first) / (last - first) : 0);
    const x = Math.max(place, previous + 22);
    previous = x;
    picture.append(shape("circle", { cx: x, cy: 28, r: 10, class: event.part }), shape("text", { x, y: 32 }, String(index + 1)));
  });
  picture.setAttribute("viewBox", `0 0 ${Math.max(1000, previous + 16)} 56`);
  return picture;
}

function showFound(found) {
  const list = element("dl");
  facts(list, found.facts.map((fact) => [fact.name, fact.value]));
  const parts = [element("p", found.summary), list];
  if (found.events.length) {
    const events = element("ol", undefined, "events");
    const first = found.events[0].at;
    events.append(...found.events.map((event) => {
      const item = element("li", `${event.part}: ${event.what} `);
      item.append(element("span", `+${(event.at - first).toFixed(3)} s, ${new Date(event.at * 1000).toISOString().replace("T", " ").slice(0, 23)} UTC`));
      return item;
    }));
    if (found.kind === "notification") parts.push(timeline(found.events));
    parts.push(events);
  }
  byId("found").replaceChildren(...parts);
}

// The connection to the page's own server.

async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (answer.status === 401) {
    location.reload(); // the login form
    throw new Error("log in again");
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

function showConnection(problem) {
  document.body.classList.toggle("disconnected", problem !== null);
  if (problem === null) {
    lastSeen = Date.now() / 1000;
    return;
  }
  const since = lastSeen === null ? "" : ` Values are of ${clock(lastSeen)}.`;
  setText("connection", "Disconnected");
  setText("state", `This page has lost its server.${since}`);
  byId("health").className = "critical";
  delete byId("problems").dataset.shown;
  byId("problems").replaceChildren();
  byId("checks").replaceChildren();
}

async function every(interval, action) {
  if (!document.hidden) await action();
  setTimeout(() => every(interval, action), interval);
}

async function refresh() {
  try {
    const now = await ask("api/live");
    showConnection(null);
    showLive(now);
    await refreshSeries();
  } catch (problem) {
    showConnection(problem);
  }
}

async function refreshHistory() {
  if (choice.hours === null) return;
  try {
    showHistory(await ask(`api/history?hours=${choice.hours}`));
  } catch (problem) {
    setText("range-note", problem.message);
  }
}

byId("search").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    showFound(await ask(`api/search?id=${encodeURIComponent(byId("wanted").value.trim())}`));
  } catch (problem) {
    byId("found").replaceChildren(element("p", problem.message, "bad"));
  }
});

function showTested(result) {
  const steps = element("ol", undefined, "events");
  steps.append(...result.steps.map((step) => {
    const item = element("li", `${step.name}${step.problem === null ? "" : `: ${step.problem}`} `, step.problem === null ? undefined : "bad");
    item.append(element("span", milliseconds(step.seconds * 1000)));
    return item;
  }));
  const verdict = result.problem === null
    ? element("p", result.ok ? "The push arrived." : "The push did not arrive.", result.ok ? "good" : "bad")
    : hint(result.problem);
  byId("tested").replaceChildren(verdict, steps);
}

byId("test-push").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button");
  const given = byId("test-token").value.trim();
  button.disabled = true;
  byId("tested").replaceChildren(element("p", "Sending"));
  try {
    const headers = given ? { Authorization: `Bearer ${given}` } : {};
    const answer = await fetch("api/test-push", { method: "POST", headers });
    const document = await answer.json();
    if (answer.ok) showTested(document);
    else byId("tested").replaceChildren(element("p", document.error, "bad"));
  } catch (problem) {
    byId("tested").replaceChildren(element("p", `The page's server does not answer: ${problem.message}`, "bad"));
  } finally {
    button.disabled = false;
  }
});

for (const button of document.querySelectorAll(".choice button")) {
  button.addEventListener("click", () => {
    choice.range = button.dataset.range || null;
    choice.hours = button.dataset.hours ? Number(button.dataset.hours) : null;
    for (const other of document.querySelectorAll(".choice button")) other.setAttribute("aria-pressed", String(other === button));
    for (const figure of document.querySelectorAll("[data-live-only]")) figure.hidden = choice.range === null;
    if (choice.range === null) refreshHistory();
    else refreshSeries().catch(showConnection);
  });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement.tagName !== "INPUT") {
    event.preventDefault();
    byId("wanted").focus();
  }
});

every(LIVE_MS, refresh);
every(HISTORY_MS, refreshHistory);
