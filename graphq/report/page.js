"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const aside = document.querySelector("aside"), overview = [...aside.childNodes];
const tip = document.getElementById("tip"), search = document.getElementById("search"), found = document.getElementById("found");
const views = [...document.querySelectorAll(".view")], tabs = [...document.querySelectorAll("nav button")];
const heat = document.getElementById("heat"), ramp = document.getElementById("ramp"), keys = [...document.querySelectorAll(".key:not(#ramp)")];
let view = views[0], hits = [], at = -1, zoom = new Map();

const make = (tag, text, name) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (name) e.className = name;
  return e;
};
const record = box => data[view.dataset.records]?.[box];
const boxes = (v, id) => v.querySelectorAll(`[data-n="${id}"]`);

function card(r) {
  const e = make("div", undefined, "record"), list = make("dl");
  e.append(make("b", r.t));
  for (const [name, text, kind] of r.r) list.append(make("dt", name), make("dd", text, kind || ""));
  e.append(list);
  for (const [records, id, text] of r.go || []) e.append(link(records, id, text), make("br"));
  return e;
}
function link(records, id, text) {
  const a = make("a", text, "go");
  a.dataset.records = records, a.dataset.to = id;
  return a;
}

function show(v) {
  view = v;
  views.forEach(x => x.hidden = x !== v);
  tabs.forEach(t => t.setAttribute("aria-selected", t.dataset.view === v.id));
  legend();
  arrange();
  if (search.value) look();
}
function picture(v = view) {
  return v.classList.contains("picture") ? v.querySelector("svg") : null;
}
function most(v) {  // the largest share of the time of a box
  return Math.max(0, ...Object.values(data[v.dataset.records] || {}).map(share));
}
function legend() {  // of the colors that the view has now
  const byTime = heat.getAttribute("aria-pressed") === "true" && picture();
  keys.forEach((key, k) => key.hidden = byTime || views[k] !== view);
  ramp.hidden = !byTime;
  ramp.querySelector("span").textContent = `${(100 * most(view)).toFixed(1)}% of the time`;
}
function arrange() {  // a picture that needs less width leaves it to the side panel; each picture is fitted once
  const svg = picture(), style = document.body.style;
  style.setProperty("--side", "400px");
  if (!svg) return;
  const wide = view.clientWidth / svg.dataset.w, high = view.clientHeight / svg.dataset.h;
  const fits = Math.max(innerWidth > 800 ? 1 : .7, Math.min(high < 1 ? 1.4 : Math.min(2, high), wide));
  const used = svg.dataset.w * (zoom.get(view) || fits) + 120;
  style.setProperty("--side", Math.max(400, Math.min(innerWidth / 2, innerWidth - used)) + "px");
  if (zoom.has(view)) return;
  resize(svg, fits);
  const first = svg.querySelector(".b").getBoundingClientRect(), here = view.getBoundingClientRect();
  view.scrollLeft += (first.left + first.right - here.left - here.right) / 2;
}
function resize(svg, now) {
  zoom.set(view, now);
  svg.setAttribute("width", svg.dataset.w * now);
  svg.setAttribute("height", svg.dataset.h * now);
}
function clear() {
  document.querySelectorAll(".on, .hot").forEach(e => e.classList.remove("on", "hot"));
}
function select(id, scroll) {
  clear();
  const r = record(id);
  if (!r) return aside.replaceChildren(...overview);
  for (const box of boxes(view, id)) {
    box.classList.add("on");
    if (scroll) box.scrollIntoView({block: "center", inline: "center"});
  }
  view.querySelectorAll(`[data-e~="${id}"]`).forEach(e => e.classList.add("hot"));
  const back = make("a", "overview", "go");
  back.dataset.overview = 1;
  aside.replaceChildren(back, card(r));
  aside.scrollTop = 0;
}
function go(records, id) {
  if (view.dataset.records !== records || !boxes(view, id).length)
    show(views.find(v => v.dataset.records === records && boxes(v, id).length) || view);
  select(id, true);
}

function look() {
  const text = search.value.trim().toLowerCase();
  document.querySelectorAll(".hit").forEach(e => e.classList.remove("hit"));
  hits = [], at = -1;
  if (text) {
    const ids = where => new Set(Object.entries(data[view.dataset.records] || {}).filter(([, r]) =>
      where(r).toLowerCase().includes(text)).map(([id]) => id));
    let wanted = ids(r => r.t + " " + (r.r[0]?.[1] || ""));
    if (!wanted.size) wanted = ids(r => r.r[1]?.[1] || "");  // operands: constants have no boxes
    hits = [...view.querySelectorAll("[data-n]:not(.title)")].filter(e => wanted.has(e.dataset.n));
    hits.forEach(e => e.classList.add("hit"));
  }
  found.textContent = text ? `${hits.length} found` : "";
}
function next(step) {
  if (!hits.length) return;
  at = (at + step + hits.length) % hits.length;
  found.textContent = `${at + 1} of ${hits.length}`;
  select(hits[at].dataset.n, true);
}

function share(r) {  // of the time: a box's own, or that of the partition that its operation is in
  return r?.s || Math.max(0, ...(r?.go || []).map(([records, id]) => data[records][id]?.s || 0));
}
function colour(byTime) {
  heat.setAttribute("aria-pressed", byTime);
  for (const v of views.filter(picture)) {
    const records = data[v.dataset.records], all = most(v);
    for (const box of v.querySelectorAll(".b:not(.title, .group)")) {
      const part = 100 * share(records[box.dataset.n]) / all;
      box.querySelector("rect").style.fill = byTime ? `color-mix(in oklab, var(--hot) ${part}%, var(--back))` : "";
    }
  }
  legend();
}

function scale(factor, x = view.clientWidth / 2, y = view.clientHeight / 2) {
  const svg = picture();
  if (!svg) return;
  const old = zoom.get(view), before = svg.getBoundingClientRect(), here = view.getBoundingClientRect();
  const now = factor ? Math.min(4, Math.max(.02, old * factor)) :
    Math.min(2, view.clientWidth / svg.dataset.w, view.clientHeight / svg.dataset.h);
  resize(svg, now);
  const after = svg.getBoundingClientRect();  // the point at x, y stays there
  view.scrollLeft += after.left - here.left - x + (here.left + x - before.left) * now / old;
  view.scrollTop += after.top - here.top - y + (here.top + y - before.top) * now / old;
}

for (const t of tabs) t.addEventListener("click", () => { clear(); show(document.getElementById(t.dataset.view)); });
document.getElementById("out").addEventListener("click", () => scale(1 / 1.3));
document.getElementById("in").addEventListener("click", () => scale(1.3));
document.getElementById("fit").addEventListener("click", () => scale());
heat.hidden = !Object.values(data).some(records => Object.values(records).some(r => r.s)) || !document.querySelector(".picture");
heat.addEventListener("click", () => colour(heat.getAttribute("aria-pressed") !== "true"));
search.addEventListener("input", look);
document.addEventListener("keydown", e => {
  if (e.target === search && e.key === "Enter") next(e.shiftKey ? -1 : 1);
  else if (e.key === "Escape") { search.value = ""; look(); select(); }
  else if (e.key === "/" && e.target !== search) { search.focus(); e.preventDefault(); }
});
document.addEventListener("click", e => {
  const a = e.target.closest("a.go");
  if (a?.dataset.overview) select();
  else if (a) go(a.dataset.records, a.dataset.to);
});

for (const v of views) {
  let drag = null, moved = false, wanted = null;
  v.addEventListener("wheel", e => {
    if (!e.ctrlKey) return;
    e.preventDefault();
    const r = v.getBoundingClientRect();
    scale(Math.exp(-e.deltaY / 300), e.clientX - r.left, e.clientY - r.top);
  }, {passive: false});
  v.addEventListener("pointerdown", e => {
    moved = false;
    if (picture(v) && e.button === 0 && e.pointerType === "mouse") drag = [e.clientX + v.scrollLeft, e.clientY + v.scrollTop, e];
  });
  v.addEventListener("pointermove", e => {
    if (drag && (moved || Math.hypot(e.clientX - drag[2].clientX, e.clientY - drag[2].clientY) > 4)) {
      moved = true;
      v.classList.add("drag");
      v.scrollTo(drag[0] - e.clientX, drag[1] - e.clientY);
    }
    wanted = drag && moved || e.pointerType !== "mouse" ? null : e.target.closest("[data-n]");
    const r = wanted && record(wanted.dataset.n);
    tip.hidden = !r;
    if (!r) return;
    tip.replaceChildren(card({...r, go: []}));
    const below = e.clientY < innerHeight / 2;
    tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.max(4, below ? e.clientY + 14 : e.clientY - 14 - tip.offsetHeight) + "px";
  });
  const end = () => { drag = null; v.classList.remove("drag"); };
  v.addEventListener("pointerup", end);
  v.addEventListener("pointerleave", () => { end(); tip.hidden = true; });
  v.addEventListener("click", e => { if (!moved) select(e.target.closest("[data-n]")?.dataset.n); });
}
for (const [k, key] of keys.entries()) key.classList.toggle("chart", !picture(views[k]));
addEventListener("resize", arrange);
show(view);
