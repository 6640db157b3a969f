// Shows the addresses of the routers as text and QR codes.
"use strict";

const TITLES = { ntf: "notification router", smp: "messaging router" };

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function copyButton(address) {
  const button = element("button", "Copy the address");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(address);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select the address above and copy it";
    }
  });
  return button;
}

function show(part, address) {
  const box = document.querySelector(`[data-part=${part}] .code`);
  if (address === null) {
    const hint = element("p", `The ${TITLES[part]} does not run: `, { class: "none" });
    hint.append(element("code", "heliograph up"), " starts it.");
    box.replaceChildren(hint);
    return;
  }
  const picture = element("img", "", { src: `api/qr?router=${part}`, alt: `QR code of the address of the ${TITLES[part]}`, width: 260, height: 260 });
  box.replaceChildren(picture, element("code", address, { class: "address" }), copyButton(address));
}

async function load() {
  try {
    const answer = await fetch("api/addresses", { headers: { Accept: "application/json" } });
    if (answer.status === 401) location.reload(); // the login form
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    for (const part of ["ntf", "smp"]) show(part, found[part]);
  } catch (problem) {
    const box = document.getElementById("problem");
    box.textContent = `The page's server does not answer: ${problem.message}`;
    box.hidden = false;
  }
}

load();
