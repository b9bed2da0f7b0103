// Forms are sent as a whole, as they were typed. Fields that do not apply are off, and not sent.
const all = (what, where = document) => [...where.querySelectorAll(what)];
const read = form => Object.fromEntries(new FormData(form));

function arrange(form) {
  const values = Object.fromEntries(all("[name]", form).filter(e => e.type !== "radio" || e.checked).map(e => [e.name, e.value]));
  if (["allocation", "shuffle"].includes(values.sampling)) Object.assign(values, { size: "batch", length: "epochs" });
  for (const part of all("[data-unless]", form)) {
    const [name, off] = part.dataset.unless.split("=");
    part.hidden = part.disabled = off.split(",").includes(values[name]);
    if (part.tagName === "LABEL") part.control.disabled = part.hidden;
  }
}

function send(form) {
  arrange(form);
  for (const part of all("[data-part]", form.closest("section"))) part.classList.add("stale");
  Shiny.setInputValue(form.id, read(form), { priority: "event" });
}

let waiting = {};
document.addEventListener("input", event => {
  const field = event.target, form = field.form;
  if (!form) return;
  const twin = field.dataset.for ? form.elements[field.dataset.for] : all(`[data-for="${field.name}"]`, form)[0];
  if (twin) twin.value = field.value;
  clearTimeout(waiting[form.id]);
  waiting[form.id] = setTimeout(() => send(form), field.type === "range" ? 30 : 200);
});
document.addEventListener("submit", event => event.preventDefault());

for (const field of all("[name]")) field.dataset.shinyNoBindInput = "";
const tabs = all("[role=tab]");
function show(tab) {
  for (const each of tabs) {
    const panel = document.getElementById(each.getAttribute("aria-controls")), on = each === tab;
    each.setAttribute("aria-selected", on);
    each.tabIndex = on ? 0 : -1;
    panel.hidden = !on;
    const form = panel.querySelector("form");
    if (on && !form.dataset.sent && (form.id !== "ledgers" || form.elements.ledger.options.length)) {
      form.dataset.sent = "yes";
      send(form);
    }
  }
}
for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    next.focus();
    show(next);
  });
}
document.addEventListener("click", async event => {
  if (!event.target.matches("[data-copy]")) return;
  await navigator.clipboard.writeText(event.target.nextElementSibling.textContent);
  event.target.textContent = "Copied";
});
$(document).on("shiny:sessioninitialized", () => show(tabs[0]));
$(document).on("shiny:disconnected", () => { document.getElementById("gone").hidden = false; });
Shiny.addCustomMessageHandler("part", part => {
  const place = document.getElementById(part.name);
  place.innerHTML = part.html;
  place.classList.remove("stale");
});
