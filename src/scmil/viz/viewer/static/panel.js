// The selected tile: image, scores, code; and the row of the atlas for the selected atom.

import { atomImage, fetchAtom, fetchCode, tileImage } from "./api.js";
import { formatNumber, nameOfKind } from "./scale.js";

const panel = document.querySelector("#panel");
const MOST_BARS = 8, MOST_IMAGES = 10;

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const paragraph = (textContent, className = "") => make("p", { textContent, className });

function rowName(kind) {
  if (kind.startsWith("probability:")) return `p(${kind.slice(12)})`;
  if (kind.startsWith("evidence:")) return `evidence ${kind.slice(9)}`;
  return nameOfKind(kind).replace(/ \(.*/, "");
}

function scoreTable(codes, names) {
  const header = (text) => make("th", { scope: "col", textContent: text });
  const value = (code, kind) => (kind in code.scores ? formatNumber(code.scores[kind]) : "–");
  const kinds = [...new Set(codes.flatMap((code) => Object.keys(code.scores)))];
  const rows = kinds.map((kind) => make("tr", {},
    make("th", { scope: "row", textContent: rowName(kind), title: nameOfKind(kind) }),
    ...codes.map((code) => make("td", { textContent: value(code, kind) }))));
  const head = make("tr", {}, header("score"), ...names.map(header));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

// All atoms from left to right; zero is in the middle if there are negative coefficients.
function spectrum(code, selected) {
  const canvas = make("canvas", { className: "spectrum", width: 520, height: 108 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${code.atoms.length} of ${code.of} atoms are used`);
  const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const [blue, orange, ink, quiet] = ["--accent", "--wrong", "--ink", "--quiet"]
    .map((name) => style.getPropertyValue(name));
  const largest = Math.max(...code.values.map(Math.abs), 1e-9);
  const signed = code.values.some((value) => value < 0);
  const zero = signed ? 54 : 102, tallest = signed ? 50 : 98;
  const width = Math.max(canvas.width / code.of, 2);
  code.atoms.forEach((atom, i) => {
    const height = (code.values[i] / largest) * tallest, left = (atom / code.of) * canvas.width;
    context.fillStyle = atom === selected ? ink : height < 0 ? orange : blue;
    context.fillRect(left, Math.min(zero, zero - height), width, Math.max(Math.abs(height), 1));
  });
  context.fillStyle = quiet;
  context.fillRect(0, zero, canvas.width, 1);
  return canvas;
}

function bars(code, selected, onAtom) {
  const size = (i) => Math.abs(code.values[i]);
  const order = [...code.atoms.keys()].sort((a, b) => size(b) - size(a)).slice(0, MOST_BARS);
  return order.map((i) => {
    const atom = code.atoms[i], value = code.values[i];
    const fill = make("i", { className: value < 0 ? "minus" : "" });
    fill.style.width = `${(100 * size(i)) / size(order[0])}%`;
    const bar = make("button", { type: "button", className: "bar" },
      make("span", { textContent: `atom ${atom}` }), make("span", {}, fill),
      make("span", { textContent: formatNumber(value) }));
    bar.dataset.atom = atom;
    bar.setAttribute("aria-pressed", String(atom === selected));
    bar.title = "Show all tiles of this slide that use this atom, and its row of the atlas";
    bar.addEventListener("click", () => onAtom(atom));
    return bar;
  });
}

async function atlasRow(model, atom, users) {
  const row = await fetchAtom(model, atom);
  const images = row.tiles.slice(0, MOST_IMAGES).map((tile, number) => {
    const slide = tile.slide ?? "unknown slide";
    const code = tile.code === undefined ? "" : `, code ${formatNumber(tile.code)}`;
    const src = atomImage(model, atom, number);
    return make("img", { src, loading: "lazy", alt: `tile of ${slide}`, title: slide + code });
  });
  const text = row.known ? row.sentence ?? ""
    : "This atom is not in an atlas. To create one: scmil atlas MODEL BAGS --slides DIR";
  return [
    make("h3", { textContent: `Atom ${atom}` }),
    paragraph(`${users} tiles of this slide use it.`),
    paragraph(text, row.known ? "" : "quiet"), make("div", { className: "atlas" }, ...images),
  ];
}

export function closePanel() {
  panel.hidden = true;
  panel.replaceChildren();
}

function position(code, { side, mpp }) {
  const [x, y] = code.xy, width = `${Math.round(side)} px`;
  return `x ${x}, y ${y} · ${width}${mpp ? ` = ${Math.round(side * mpp)} µm` : ""}`;
}

// `tiles` are [pane, tile, name] for each model that has the tile, the clicked one first.
export async function showTile(tiles, atom, users, actions) {
  const [[pane, tile]] = tiles, { slide } = pane;
  const codes = await Promise.all(
    tiles.map(([other, number]) => fetchCode(slide, other.model, number)),
  );
  const [code] = codes;
  const close = make("button", { type: "button", textContent: "✕", title: "Close (Esc)" });
  close.setAttribute("aria-label", "Close");
  close.addEventListener("click", actions.close);
  const parts = [
    make("div", { className: "top" }, make("h2", { textContent: `Tile ${tile}` }), close),
    make("img", {
      className: "tile", src: tileImage(slide, pane.model, tile), alt: `Tile ${tile}`,
    }),
    paragraph(position(code, pane.facts), "quiet"),
    scoreTable(codes, tiles.map(([, , name]) => name)),
  ];
  if (code.of) {
    const title = `Code: ${code.atoms.length} of ${code.of} atoms used`;
    const axis = [0, code.of - 1].map((end) => make("span", { textContent: `atom ${end}` }));
    parts.push(make("h3", { textContent: title }), spectrum(code, atom),
      make("div", { className: "axis" }, ...axis), ...bars(code, atom, actions.selectAtom));
  } else {
    parts.push(paragraph("This model has no sparse coding, so its tiles have no code.", "quiet"));
  }
  if (atom !== null && code.of) parts.push(...(await atlasRow(pane.model, atom, users)));
  panel.replaceChildren(...parts);
  panel.hidden = false;
  panel.querySelector(".atlas")?.scrollIntoView({ block: "end" });
}
