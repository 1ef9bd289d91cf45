// The chosen tile: its picture, its scores, its code as bars over atoms; and of a chosen atom the row of the atlas.

import { atomOf, atomPicture, codeOf, tilePicture } from "./api.js";
import { nameOf, said } from "./scale.js";

const panel = document.querySelector("#panel");
const STRONGEST = 8;

function make(tag, options = {}, ...inside) {
  const made = Object.assign(document.createElement(tag), options);
  made.append(...inside);
  return made;
}

function table(codes, names) {
  const kinds = [...new Set(codes.flatMap((code) => Object.keys(code.scores)))];
  const head = make("tr", {}, make("th", { scope: "col", textContent: "score" }), ...names.map((name) => make("th", { scope: "col", textContent: name })));
  const rows = kinds.map((kind) => make("tr", {}, make("th", { scope: "row", textContent: kind.startsWith("probability:") ? `p(${kind.slice(12)})` : nameOf(kind).replace(/ \(.*/, "") }),
    ...codes.map((code) => make("td", { textContent: kind in code.scores ? said(code.scores[kind]) : "–" }))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

// All atoms from left to right, zero in the middle if there are negative ones.
function spectrum(code, chosen) {
  const canvas = make("canvas", { className: "spectrum", width: 520, height: 108 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${code.atoms.length} of ${code.of} atoms are used`);
  const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const [blue, orange, ink] = ["--accent", "--wrong", "--ink"].map((name) => style.getPropertyValue(name));
  const most = Math.max(...code.values.map(Math.abs), 1e-9), signed = code.values.some((value) => value < 0);
  const zero = signed ? 54 : 102, tall = signed ? 50 : 98, wide = Math.max(canvas.width / code.of, 2);
  code.atoms.forEach((atom, place) => {
    const height = (code.values[place] / most) * tall;
    context.fillStyle = atom === chosen ? ink : height < 0 ? orange : blue;
    context.fillRect((atom / code.of) * canvas.width, Math.min(zero, zero - height), wide, Math.max(Math.abs(height), 1));
  });
  context.fillStyle = style.getPropertyValue("--quiet");
  context.fillRect(0, zero, canvas.width, 1);
  return canvas;
}

function bars(code, chosen, onAtom) {
  const order = [...code.atoms.keys()].sort((a, b) => Math.abs(code.values[b]) - Math.abs(code.values[a])).slice(0, STRONGEST);
  const most = order.length ? Math.abs(code.values[order[0]]) : 1;
  return order.map((place) => {
    const atom = code.atoms[place], value = code.values[place];
    const fill = make("i", { className: value < 0 ? "minus" : "" });
    fill.style.width = `${(100 * Math.abs(value)) / most}%`;
    const bar = make("button", { type: "button", className: "bar" },
      make("span", { textContent: `atom ${atom}` }), make("span", {}, fill), make("span", { textContent: said(value) }));
    bar.dataset.atom = atom;
    bar.setAttribute("aria-pressed", String(atom === chosen));
    bar.title = "Show its row of the atlas, and every tile of this slide that uses it";
    bar.addEventListener("click", () => onAtom(atom));
    return bar;
  });
}

async function atlas(model, atom, users) {
  const row = await atomOf(model, atom);
  const pictures = row.tiles.slice(0, 10).map((tile, number) =>
    make("img", { src: atomPicture(model, atom, number), loading: "lazy", alt: `tile of ${tile.slide ?? "a slide"}`, title: `${tile.slide ?? ""} ${tile.code === undefined ? "" : said(tile.code)}` }));
  const words = row.known ? row.sentence ?? "The atlas has no sentence for it." : "It is not in an atlas. Make one: scmil atlas MODEL BAGS --slides DIR";
  return [make("h3", { textContent: `Atom ${atom}` }), make("p", { textContent: `${users} tiles of this slide use it.` }),
    make("p", { className: row.known ? "" : "quiet", textContent: words }), make("div", { className: "atlas" }, ...pictures)];
}

export function closePanel() {
  panel.hidden = true;
  panel.replaceChildren();
}

// `both` are [pane, tile, name] of every model that has the tile, the one that was clicked first.
export async function showTile(both, atom, users, acts) {
  const [[pane, tile]] = both, { slide } = pane;
  const codes = await Promise.all(both.map(([other, its]) => codeOf(slide, other.model, its)));
  const [code] = codes;
  const close = make("button", { type: "button", textContent: "✕", title: "Close (Esc)" });
  close.setAttribute("aria-label", "Close");
  close.addEventListener("click", acts.close);
  const parts = [
    make("div", { className: "top" }, make("h2", { textContent: `Tile ${tile}` }), close),
    make("img", { className: "tile", src: tilePicture(slide, pane.model, tile), alt: `Tile ${tile}` }),
    make("p", { className: "quiet", textContent: `x ${code.xy[0]}, y ${code.xy[1]} · ${Math.round(pane.facts.side)} px${pane.facts.mpp ? ` = ${Math.round(pane.facts.side * pane.facts.mpp)} µm` : ""}` }),
    table(codes, both.map(([, , name]) => name)),
  ];
  if (code.of) {
    parts.push(make("h3", { textContent: `Code: ${code.atoms.length} of ${code.of} atoms` }), spectrum(code, atom),
      make("div", { className: "axis" }, make("span", { textContent: "atom 0" }), make("span", { textContent: `atom ${code.of - 1}` })),
      ...bars(code, atom, acts.atom));
  } else {
    parts.push(make("p", { className: "quiet", textContent: "This model has no sparse coding, so the tile has no code." }));
  }
  if (atom !== null && code.of) parts.push(...(await atlas(pane.model, atom, users)));
  panel.replaceChildren(...parts);
  panel.hidden = false;
  panel.querySelector(".atlas")?.scrollIntoView({ block: "end" });
}
