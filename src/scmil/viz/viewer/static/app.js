// The page: what is looked at and how (`look`), the controls and keys that change it, and the parts that show it.

import { listOf, truthOf } from "./api.js";
import { drawGallery, markInGallery, toggleGallery } from "./gallery.js";
import { SlideList } from "./list.js";
import { Pane, lock } from "./pane.js";
import { closePanel, showTile } from "./panel.js";
import { saveLayers, savePicture } from "./save.js";
import { nameOf, ramp } from "./scale.js";

const $ = (id) => document.getElementById(id);
const look = { kind: "attention", how: "rank", opacity: 0.55, threshold: 0, heat: true, truth: true };
const page = await listOf();
const names = page.models.map((model) => model.name);
const colours = ramp(page.colours);
const panes = names.map((_, model) => new Pane($("panes"), model, look, colours, choose));
const list = new SlideList(page, open);
let tile = null; // the chosen one: [pane, number]
let quiet = null;
lock(panes);

function say(words) {
  clearTimeout(quiet);
  $("message").textContent = words;
  quiet = setTimeout(() => { $("message").textContent = ""; }, 6000);
}

const slideNow = () => page.slides[list.chosen];
const atomNow = () => (look.kind.startsWith("atom:") ? Number(look.kind.slice(5)) : null);

async function open(place) {
  list.mark(place);
  tile = null;
  closePanel();
  const slide = page.slides[place];
  $("title").textContent = slide.id;
  document.title = `${slide.id} · scmil view`;
  history.replaceState(null, "", `#${encodeURIComponent(slide.id)}`);
  try {
    const drawn = truthOf(place).catch((error) => { say(error.message); return []; });
    await Promise.all(panes.map((pane) => pane.show(place)));
    const truth = await drawn;
    if (list.chosen !== place) return;
    panes.forEach((pane) => { pane.truth = truth; });
    fillKinds();
    describe();
    await recolour();
    document.body.dataset.ready = slide.id; // for whoever waits for the page
  } catch (error) {
    if (list.chosen === place) say(error.message);
  }
}

function fillKinds() {
  const kinds = [...new Set(panes.flatMap((pane) => pane.facts.kinds))], atoms = Math.max(...panes.map((pane) => pane.facts.atoms));
  const options = kinds.map((kind) => new Option(nameOf(kind), kind));
  if (atoms) options.push(new Option("atom …", "atom"));
  $("kind").replaceChildren(...options);
  $("atom").max = atoms - 1;
  if (!panes.some((pane) => pane.has(look.kind))) look.kind = kinds[0] ?? "attention";
  showKind();
}

function showKind() {
  const atom = atomNow();
  $("kind").value = atom === null ? look.kind : "atom";
  $("atom-field").hidden = atom === null;
  if (atom !== null) $("atom").value = atom;
}

function describe() {
  const slide = slideNow(), { size, mpp, xy } = panes[0].facts;
  const label = slide.label === null ? "label not known" : `label: ${slide.label}`;
  $("facts").textContent = `${label} · ${size[0]} × ${size[1]} px${mpp ? ` · ${mpp.toPrecision(3)} µm/px` : ""} · ${xy.length / 2} tiles${slide.picture ? "" : " · no file of this slide: only its tiles are shown"}`;
  panes.forEach((pane) => { pane.caption.textContent = captionOf(pane); });
}

function captionOf(pane, short = false) {
  const said = slideNow().models[pane.model];
  if (!said) return `${names[pane.model]} has not scored this slide`;
  const mark = said.correct === null ? "" : said.correct ? " ✓" : " ✗ wrong";
  const shared = said.effective_tiles === null ? "" : ` · attention on ${Math.round(said.effective_tiles)} of ${pane.facts.xy.length / 2} tiles`;
  const missing = pane.has(look.kind) ? "" : ` · has no ${nameOf(look.kind)}`;
  return `${names[pane.model]}: ${said.predicted} ${said.probability.toFixed(2)}${mark}${short ? "" : missing || shared}`;
}

async function recolour() {
  showKind();
  describe();
  await Promise.all(panes.map((pane) => pane.colour()));
  drawGallery(panes, names, (pane, number) => choose(pane, number, true));
  if (tile) await showPanel();
}

async function setKind(kind) {
  look.kind = kind;
  await recolour();
}

async function choose(pane, number, go = false) {
  tile = number === null ? null : [pane, number];
  const [x, y] = number === null ? [NaN, NaN] : pane.corner(number).map((corner) => corner + pane.facts.side / 2);
  for (const other of panes) other.chosen = number === null ? null : other === pane ? number : other.tileAt(x, y);
  if (number === null) closePanel();
  else await showPanel();
  if (go) requestAnimationFrame(() => pane.goTo(number)); // after the panel has taken its room
  panes.forEach((one) => one.draw());
  markInGallery(number);
}

async function showPanel() {
  const [pane, number] = tile, atom = atomNow();
  const both = [pane, ...panes.filter((other) => other !== pane)].filter((one) => one.chosen !== null)
    .map((one) => [one, one.chosen, names[one.model]]);
  const acts = { close: () => choose(pane, null), atom: (chosen) => setKind(`atom:${chosen}`) };
  await showTile(both, atom, atom === null ? 0 : pane.scale?.order.length ?? 0, acts).catch((error) => say(error.message));
  markInGallery(number);
}

// ------------------------------------------------------------------------------------------------------------- controls

function redraw() {
  $("heat").checked = look.heat;
  $("truth").checked = look.truth;
  $("opacity").value = Math.round(100 * look.opacity);
  $("scale").value = look.how;
  $("threshold-said").textContent = `${Math.round(100 * look.threshold)} %`;
  panes.forEach((pane) => pane.draw());
}

const change = (changes) => { Object.assign(look, changes); redraw(); };
const setHow = (how) => { look.how = how; redraw(); return recolour(); };
const dim = (by) => change({ opacity: Math.min(Math.max(look.opacity + by, 0), 1) });
const zoom = (by) => { panes[0].viewport.zoomBy(by); panes[0].viewport.applyConstraints(); };
const move = (x, y) => {
  const { width, height } = panes[0].viewport.getBounds();
  panes[0].viewport.panBy(new window.OpenSeadragon.Point(x * width * 0.2, y * height * 0.2));
  panes[0].viewport.applyConstraints();
};
const gallery = () => { toggleGallery($("gallery-button")); drawGallery(panes, names, (pane, number) => choose(pane, number, true)); };
const theme = () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches, now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
};
const png = () => savePicture(panes, slideNow().id, panes.map((pane) => captionOf(pane, true))).catch((error) => say(error.message));
const geojson = () => saveLayers(panes, slideNow().id, names);
const nextScore = () => {
  const kinds = [...$("kind").options].map((option) => option.value).filter((kind) => kind !== "atom");
  return setKind(kinds[(kinds.indexOf(look.kind) + 1) % kinds.length]);
};
const walk = (by) => { // from the highest tile down, and back
  const pane = tile?.[0] ?? panes[0], order = pane.scale?.order ?? [];
  const here = tile ? order.indexOf(tile[1]) : order.length;
  const next = order[Math.min(Math.max(here - by, 0), order.length - 1)];
  if (next !== undefined) choose(pane, next, true);
};

$("heat").addEventListener("change", () => change({ heat: $("heat").checked }));
$("truth").addEventListener("change", () => change({ truth: $("truth").checked }));
$("opacity").addEventListener("input", () => change({ opacity: $("opacity").value / 100 }));
$("threshold").addEventListener("input", () => change({ threshold: $("threshold").value / 100 }));
$("scale").addEventListener("change", () => setHow($("scale").value));
$("kind").addEventListener("change", () => setKind($("kind").value === "atom" ? `atom:${$("atom").value || 0}` : $("kind").value));
$("atom").addEventListener("change", () => {
  const atom = Math.min(Math.max(Math.round(Number($("atom").value)) || 0, 0), Number($("atom").max));
  setKind(`atom:${atom}`);
});
for (const [id, act] of Object.entries({ "gallery-button": gallery, png, geojson, theme, "help-button": () => $("help").showModal() })) {
  $(id).addEventListener("click", act);
}

const KEYS = {
  ArrowUp: () => list.step(-1), ArrowDown: () => list.step(1), "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5),
  0: () => panes[0].viewport.goHome(), h: () => change({ heat: !look.heat }), t: () => change({ truth: !look.truth }),
  "[": () => dim(-0.1), "]": () => dim(0.1), g: gallery, s: nextScore, r: () => setHow(look.how === "rank" ? "value" : "rank"),
  n: () => walk(1), b: () => walk(-1), p: png, j: geojson, d: theme, "/": () => $("filter").focus(), "?": () => $("help").showModal(),
  Escape: () => choose(panes[0], null),
};
const SHIFTED = { ArrowUp: () => move(0, -1), ArrowDown: () => move(0, 1), ArrowLeft: () => move(-1, 0), ArrowRight: () => move(1, 0) };

document.addEventListener("keydown", (event) => {
  const field = event.target.closest?.("input[type=search], input[type=number], select, dialog[open]");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (field) {
    if (event.key === "Escape" && field.tagName !== "DIALOG") event.target.blur();
    if (!(field.type === "search" && event.key.startsWith("Arrow"))) return;
  }
  const act = (event.shiftKey && SHIFTED[event.key]) || KEYS[event.key];
  if (!act || $("help").open) return;
  event.preventDefault();
  act();
});

const asked = decodeURIComponent(location.hash.slice(1));
open(Math.max(page.slides.findIndex((slide) => slide.id === asked), 0));
window.scmil = { look, panes, list }; // for tests, and for the curious in the console
