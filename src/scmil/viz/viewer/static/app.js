// The page: the settings of the view, and the controls and keys that change them.

import { fetchList, fetchOutlines } from "./api.js";
import { drawGallery, markInGallery, toggleGallery } from "./gallery.js";
import { SlideList } from "./list.js";
import { Pane, synchronise } from "./pane.js";
import { closePanel, showTile } from "./panel.js";
import { saveImage, saveLayers } from "./save.js";
import { colourRamp, formatNumber, isByValue, nameOfKind } from "./scale.js";

const byId = (id) => document.getElementById(id);
const settings = {
  kind: "attention", colourBy: "rank", opacity: 0.55, threshold: 0, heat: true, annotations: true,
};
const page = await fetchList();
const names = page.models.map((model) => model.name);
const colours = { plain: colourRamp(page.colours), signed: colourRamp(page.signed) };
const panes = names.map(
  (_, model) => new Pane(byId("panes"), model, settings, colours, selectTile),
);
const list = new SlideList(page, openSlide);
let selected = null; // [pane, tile]
let messageTimer = null;
synchronise(panes);

function showMessage(text) {
  clearTimeout(messageTimer);
  byId("message").textContent = text;
  messageTimer = setTimeout(() => { byId("message").textContent = ""; }, 6000);
}

const showError = (error) => showMessage(error.message);
const currentSlide = () => page.slides[list.selected];
const currentAtom = () =>
  (settings.kind.startsWith("atom:") ? Number(settings.kind.slice(5)) : null);

async function openSlide(index) {
  list.select(index);
  selected = null;
  closePanel();
  const slide = page.slides[index];
  byId("title").textContent = slide.id;
  document.title = `${slide.id} · scmil view`;
  history.replaceState(null, "", `#${encodeURIComponent(slide.id)}`);
  try {
    const request = fetchOutlines(index).catch((error) => { showError(error); return []; });
    await Promise.all(panes.map((pane) => pane.open(index)));
    const outlines = await request;
    if (list.selected !== index) return;
    panes.forEach((pane) => { pane.outlines = outlines; });
    fillKinds();
    showFacts();
    await recolour();
    document.body.dataset.ready = slide.id; // tests and screenshots wait for it
  } catch (error) {
    if (list.selected === index) showError(error);
  }
}

function fillKinds() {
  const kinds = [...new Set(panes.flatMap((pane) => pane.facts.kinds))];
  const atoms = Math.max(...panes.map((pane) => pane.facts.atoms));
  const options = kinds.map((kind) => new Option(nameOfKind(kind), kind));
  if (atoms) options.push(new Option("code of an atom …", "atom"));
  byId("kind").replaceChildren(...options);
  byId("atom").max = atoms - 1;
  if (!panes.some((pane) => pane.has(settings.kind))) settings.kind = kinds[0] ?? "attention";
  showKind();
}

function showKind() {
  const atom = currentAtom();
  byId("kind").value = atom === null ? settings.kind : "atom";
  byId("atom-field").hidden = atom === null;
  if (atom !== null) byId("atom").value = atom;
  byId("scale").disabled = isByValue(settings.kind);
  byId("scale").value = isByValue(settings.kind) ? "value" : settings.colourBy;
}

function showFacts() {
  const slide = currentSlide(), { size, mpp, xy } = panes[0].facts;
  const facts = [
    slide.label === null ? "label: unknown" : `label: ${slide.label}`,
    `${size[0]} × ${size[1]} px`,
    ...(mpp ? [`${mpp.toPrecision(3)} µm/px`] : []),
    `${xy.length / 2} tiles`,
    ...(slide.picture ? [] : ["no slide file, only tiles are shown"]),
  ];
  byId("facts").textContent = byId("facts").title = facts.join(" · ");
  panes.forEach((pane) => { pane.caption.textContent = pane.caption.title = captionOf(pane); });
}

function captionOf(pane, short = false) {
  const name = names[pane.model], prediction = currentSlide().models[pane.model];
  if (!prediction) return `${name}: no scores for this slide`;
  const { predicted, probability, correct, effective_tiles: effective } = prediction;
  const mark = correct === null ? "" : correct ? " ✓ right" : " ✗ wrong";
  const caption = `${name}: predicted ${predicted} ${probability.toFixed(2)}${mark}`;
  if (short) return caption;
  const { kind } = settings;
  if (!pane.has(kind)) return `${caption} · this model has no ${nameOfKind(kind)}`;
  const sum = pane.facts.evidence[kind.replace(/^evidence:/, "")];
  if (kind.startsWith("evidence:") && sum) {
    const { logit, constant, error, method } = sum;
    const total = formatNumber(logit + error - constant);
    return `${caption} · logit ${formatNumber(logit)} = constant ${formatNumber(constant)} + `
      + `evidence ${total}, completeness error ${formatNumber(Math.abs(error))} (${method})`;
  }
  if (kind.startsWith("spread:")) {
    return `${caption} · standard deviation over ${pane.facts.models} models`;
  }
  if (effective === null) return caption;
  return `${caption} · attention on ${Math.round(effective)} of ${pane.facts.xy.length / 2} tiles`;
}

async function recolour() {
  showKind();
  showFacts();
  await Promise.all(panes.map((pane) => pane.recolour()));
  updateGallery();
  if (selected) await updatePanel();
}

async function setKind(kind) {
  settings.kind = kind;
  await recolour();
}

async function selectTile(pane, tile, zoomTo = false) {
  selected = tile === null ? null : [pane, tile];
  const [x, y] = tile === null ? [NaN, NaN] : pane.centre(tile);
  for (const other of panes) {
    other.selected = tile === null ? null : other === pane ? tile : other.tileAt(x, y);
  }
  if (tile === null) closePanel();
  else await updatePanel();
  if (zoomTo) requestAnimationFrame(() => pane.zoomToTile(tile)); // after the panel has its width
  panes.forEach((one) => one.draw());
  markInGallery(tile);
}

async function updatePanel() {
  const [pane, tile] = selected, atom = currentAtom();
  const tiles = [pane, ...panes.filter((other) => other !== pane)]
    .filter((one) => one.selected !== null).map((one) => [one, one.selected, names[one.model]]);
  const actions = {
    close: () => selectTile(pane, null), selectAtom: (other) => setKind(`atom:${other}`),
  };
  const users = atom === null ? 0 : pane.scale?.order.length ?? 0;
  await showTile(tiles, atom, users, actions).catch(showError);
  markInGallery(tile);
}

function updateGallery() {
  drawGallery(panes, names, (pane, tile) => selectTile(pane, tile, true));
}

// ---------------------------------------------------------------------------------------- controls

function redraw() {
  byId("heat").checked = settings.heat;
  byId("annotations").checked = settings.annotations;
  byId("opacity").value = Math.round(100 * settings.opacity);
  byId("scale").value = settings.colourBy;
  byId("threshold-value").textContent = `${Math.round(100 * settings.threshold)} %`;
  panes.forEach((pane) => pane.draw());
}

const change = (changes) => { Object.assign(settings, changes); redraw(); };
const setColourBy = (colourBy) => { change({ colourBy }); return recolour(); };
const changeOpacity = (by) =>
  change({ opacity: Math.min(Math.max(settings.opacity + by, 0), 1) });
const zoom = (factor) => {
  panes[0].viewport.zoomBy(factor);
  panes[0].viewport.applyConstraints();
};
const move = (x, y) => {
  const { width, height } = panes[0].viewport.getBounds();
  panes[0].viewport.panBy(new window.OpenSeadragon.Point(x * width * 0.2, y * height * 0.2));
  panes[0].viewport.applyConstraints();
};
const gallery = () => { toggleGallery(byId("gallery-button")); updateGallery(); };
const theme = () => {
  const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const { dataset } = document.documentElement;
  dataset.theme = (dataset.theme ?? preferred) === "dark" ? "light" : "dark";
};
const png = () => {
  const captions = panes.map((pane) => captionOf(pane, true));
  return saveImage(panes, currentSlide().id, captions).catch(showError);
};
const geojson = () => saveLayers(panes, currentSlide().id, names);
const help = () => byId("help").showModal();
const nextScore = () => {
  const kinds = [...byId("kind").options].map((option) => option.value)
    .filter((kind) => kind !== "atom");
  return setKind(kinds[(kinds.indexOf(settings.kind) + 1) % kinds.length]);
};
const stepTile = (by) => { // from the highest score down, and back
  const pane = selected?.[0] ?? panes[0], order = pane.scale?.order ?? [];
  const rank = selected ? order.indexOf(selected[1]) : order.length;
  const next = order[Math.min(Math.max(rank - by, 0), order.length - 1)];
  if (next !== undefined) selectTile(pane, next, true);
};

function onChange(id, event, read) {
  byId(id).addEventListener(event, () => read(byId(id)));
}

onChange("heat", "change", (input) => change({ heat: input.checked }));
onChange("annotations", "change", (input) => change({ annotations: input.checked }));
onChange("opacity", "input", (input) => change({ opacity: input.value / 100 }));
onChange("threshold", "input", (input) => change({ threshold: input.value / 100 }));
onChange("scale", "change", (input) => setColourBy(input.value));
onChange("kind", "change", (input) =>
  setKind(input.value === "atom" ? `atom:${byId("atom").value || 0}` : input.value));
onChange("atom", "change", (input) => {
  const number = Math.round(Number(input.value)) || 0;
  setKind(`atom:${Math.min(Math.max(number, 0), Number(input.max))}`);
});
const buttons = { "gallery-button": gallery, png, geojson, theme, "help-button": help };
for (const [id, action] of Object.entries(buttons)) byId(id).addEventListener("click", action);

const KEYS = {
  ArrowUp: () => list.step(-1), ArrowDown: () => list.step(1),
  "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5),
  0: () => panes[0].viewport.goHome(),
  h: () => change({ heat: !settings.heat }),
  t: () => change({ annotations: !settings.annotations }),
  "[": () => changeOpacity(-0.1), "]": () => changeOpacity(0.1),
  s: nextScore, r: () => setColourBy(settings.colourBy === "rank" ? "value" : "rank"),
  g: gallery, n: () => stepTile(1), b: () => stepTile(-1), p: png, j: geojson, d: theme,
  "/": () => byId("filter").focus(), "?": help, Escape: () => selectTile(panes[0], null),
};
const SHIFTED = {
  ArrowUp: () => move(0, -1), ArrowDown: () => move(0, 1),
  ArrowLeft: () => move(-1, 0), ArrowRight: () => move(1, 0),
};

document.addEventListener("keydown", (event) => {
  const fields = "input[type=search], input[type=number], select, dialog[open]";
  const field = event.target.closest?.(fields);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (field) {
    if (event.key === "Escape" && field.tagName !== "DIALOG") event.target.blur();
    if (!(field.type === "search" && event.key.startsWith("Arrow"))) return;
  }
  const action = (event.shiftKey && SHIFTED[event.key]) || KEYS[event.key];
  if (!action || byId("help").open) return;
  event.preventDefault();
  action();
});

const wanted = decodeURIComponent(location.hash.slice(1));
openSlide(Math.max(page.slides.findIndex((slide) => slide.id === wanted), 0));
window.scmil = { settings, panes, list }; // for tests
