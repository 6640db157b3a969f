// Draws what the API tells. Every value goes in as text, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const LIVE_MS = 2000;
const HISTORY_MS = 60000;
let hours = 24;

const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });
const milliseconds = (value) => (value === null ? "–" : value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`);

function duration(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function facts(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

function rows(table, entries, nothing) {
  const body = table.tBodies[0];
  const made = entries.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell))));
    return row;
  });
  if (made.length === 0) {
    const cell = element("td", nothing, "none");
    cell.colSpan = table.tHead.rows[0].cells.length;
    const row = element("tr");
    row.append(cell);
    made.push(row);
  }
  body.replaceChildren(...made);
}

function bars(box, counts, nothing) {
  const entries = Object.entries(counts);
  const most = Math.max(1, ...entries.map(([, count]) => count));
  box.replaceChildren(...entries.map(([name, count]) => {
    const line = element("div");
    const meter = element("meter");
    meter.max = most;
    meter.value = count;
    meter.setAttribute("aria-label", `${name}: ${count}`);
    line.append(element("span", name), meter, element("span", number(count)));
    return line;
  }));
  if (entries.length === 0) box.append(element("p", nothing, "none"));
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function plot(box, lines, label) {
  const points = lines.flat();
  if (points.length === 0) {
    box.replaceChildren(element("p", "Nothing to draw yet", "none"));
    return;
  }
  const [width, height, left, bottom] = [box.clientWidth || 300, box.clientHeight || 64, 34, 4];
  const times = points.map(([at]) => at);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const most = Math.max(1e-9, ...points.map(([, value]) => value));
  const x = (at) => left + ((at - first) / Math.max(1e-9, last - first)) * (width - left);
  const y = (value) => height - bottom - (value / most) * (height - bottom - 10);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}, at most ${number(most)}` });
  svg.append(shape("line", { x1: left, x2: width, y1: height - bottom, y2: height - bottom }));
  svg.append(shape("text", { x: 0, y: 12 }, number(most)), shape("text", { x: 0, y: height - bottom }, "0"));
  lines.forEach((line, index) => {
    const path = line.map(([at, value], place) => `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const kind = index ? { class: "second" } : {};
    svg.append(shape("path", { d: path, ...kind }));
    if (line.length === 1) svg.append(shape("circle", { cx: x(line[0][0]), cy: y(line[0][1]), r: 4, ...kind }));
  });
  box.replaceChildren(svg);
}

function health(told) {
  const troubles = Object.entries(told.problems).filter(([, problem]) => problem).map(([name, problem]) => `${name}: ${problem}`);
  for (const part of told.parts) if (part.state !== "running") troubles.push(`${part.name} is ${part.state}`);
  for (const provider of told.providers) if (provider.health === "down") troubles.push(`${provider.name} takes no pushes`);
  if (told.oldest_debt_seconds > 60) troubles.push(`a push has been owed for ${duration(told.oldest_debt_seconds)}`);
  const text = troubles.length ? troubles.join(" · ") : "All is well";
  const line = byId("health");
  if (line.textContent !== text) line.textContent = text;
  line.className = troubles.length ? "bad" : "good";
}

function showLive(told) {
  health(told);
  byId("pushes-rate").textContent = number(told.pushes.per_second);
  plot(byId("pushes-plot"), [told.pushes.series, told.notifications.series], "Pushes and notifications a second");
  facts(byId("pushes-facts"), [
    ["notifications received", number(told.notifications.total)],
    ["pushes accepted", number(told.pushes.total)],
    ["failed tries", number(told.pushes.failed)],
    ["tried again", number(told.pushes.retried)],
    ["given up", number(told.pushes.expired)],
  ]);
  byId("latency-p50").textContent = milliseconds(told.latency_ms.p50);
  facts(byId("latency-facts"), [["90 of 100 within", milliseconds(told.latency_ms.p90)], ["99 of 100 within", milliseconds(told.latency_ms.p99)]]);
  const owed = Object.entries(told.debts);
  byId("debts-total").textContent = number(owed.reduce((sum, [, count]) => sum + count, 0));
  facts(byId("debts-facts"), [...owed.map(([kind, count]) => [kind, number(count)]), ["the oldest for", duration(told.oldest_debt_seconds)]]);
  bars(byId("tokens"), told.tokens, "No phone has registered yet");
  bars(byId("subscriptions"), told.subscriptions, "Nothing is subscribed yet");
  rows(byId("routers"), told.smp_routers.map((router) => [router.name, number(router.active), number(router.pending)]), "none");
  rows(byId("providers"), told.providers.map((provider) => [
    provider.name,
    element("td", provider.health, provider.health === "good" ? "good" : provider.health === "idle" ? "none" : "bad"),
    number(provider.accepted), number(provider.failed), number(provider.under_way),
  ]), "none is configured");
  rows(byId("failures"), told.failures.map((failure) => [failure.reason, number(failure.recent), number(failure.total)]), "none");
  rows(byId("parts"), told.parts.map((part) => [
    part.name, element("td", part.state, part.state === "running" ? "good" : "bad"), duration(told.at - part.since), number(part.restarts),
  ]), "not known: the page runs by itself");
  const lag = told.pipeline.lag_seconds;
  facts(byId("pipeline-facts"), [
    ["pipeline", told.pipeline.state],
    ["pipeline lag", lag === null ? "–" : duration(lag)],
    ["events accounted for", told.pipeline.events === null ? "–" : number(told.pipeline.events)],
    ["in quarantine", told.pipeline.quarantined === null ? "–" : number(told.pipeline.quarantined)],
  ]);
}

function showHistory(told) {
  const line = (key) => told.points.filter((point) => point[key] !== null).map((point) => [point.at, point[key]]);
  plot(byId("history-pushes"), [line("accepted"), line("rejected")], "Pushes accepted and rejected by hour");
  plot(byId("history-latency"), [line("p50_ms"), line("p99_ms")], "Latency by hour");
  bars(byId("fates"), told.fates, "The pipeline has not told yet");
}

function showFound(told) {
  const box = byId("found");
  const list = element("dl");
  facts(list, told.facts.map((fact) => [fact.name, fact.value]));
  const events = element("ol");
  events.append(...told.events.map((event) => element("li", `${new Date(event.at * 1000).toISOString().replace("T", " ").slice(0, 23)}  ${event.part}: ${event.what}`)));
  box.replaceChildren(element("p", told.summary), list, ...(told.events.length ? [events] : []));
}

async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told;
}

async function keep(path, show, interval) {
  try {
    if (!document.hidden) show(await ask(path()));
  } catch (problem) {
    byId("health").textContent = `The page cannot ask: ${problem.message}`;
    byId("health").className = "bad";
  }
  setTimeout(() => keep(path, show, interval), interval);
}

byId("search").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    showFound(await ask(`api/search?id=${encodeURIComponent(byId("wanted").value.trim())}`));
  } catch (problem) {
    byId("found").replaceChildren(element("p", problem.message, "bad"));
  }
});

for (const button of document.querySelectorAll("[data-hours]")) {
  button.addEventListener("click", async () => {
    hours = Number(button.dataset.hours);
    for (const other of document.querySelectorAll("[data-hours]")) other.setAttribute("aria-pressed", String(other === button));
    try {
      showHistory(await ask(`api/history?hours=${hours}`));
    } catch (problem) {
      byId("fates").replaceChildren(element("p", problem.message, "bad"));
    }
  });
}

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement.tagName !== "INPUT") {
    event.preventDefault();
    byId("wanted").focus();
  }
});

keep(() => "api/live", showLive, LIVE_MS);
keep(() => `api/history?hours=${hours}`, showHistory, HISTORY_MS);
